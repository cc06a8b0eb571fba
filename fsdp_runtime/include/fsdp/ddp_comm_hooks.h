#pragma once

/// @file
/// How DistributedDataParallel reduces its buckets, if not by the mean of all ranks: PyTorch's
/// `torch.distributed.algorithms.ddp_comm_hooks`.

#include <ATen/core/Tensor.h>
#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// @addtogroup replicate
/// @{

/// Gradients that are reduced together, while a hook has them.
class FSDP_API GradBucket {
 public:
  /// For DistributedDataParallel.
  GradBucket(size_t index, bool is_last, at::Tensor buffer,
             const std::vector<at::Tensor>& gradients, const std::vector<std::string>& names,
             Collectives& group)
      : index_(index),
        is_last_(is_last),
        buffer_(std::move(buffer)),
        gradients_(gradients),
        names_(names),
        group_(group) {}

  /// Its number, from 0, in the order in which buckets are reduced: the same on all ranks.
  size_t index() const { return index_; }
  /// Whether no bucket of this backward comes behind it.
  bool is_last() const { return is_last_; }
  /// Shape [numel]: all gradients of this rank, end to end, not divided.
  const at::Tensor& buffer() const { return buffer_; }
  /// The parts of buffer(), in their parameters' shapes.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }
  /// The parameters' names.
  const std::vector<std::string>& names() const { return names_; }
  /// Whose ranks take part.
  Collectives& group() const { return group_; }

 private:
  size_t index_;
  bool is_last_;
  at::Tensor buffer_;
  const std::vector<at::Tensor>& gradients_;
  const std::vector<std::string>& names_;
  Collectives& group_;
};

/// What a hook has started.
struct FSDP_API CommHookResult {
  /// When it has ended, the result is there. Null: it is there already.
  WorkPtr work;
  /// The result, shape [numel], any floating-point dtype; it is copied into GradBucket::buffer().
  /// Undefined: it is in the buffer.
  at::Tensor tensor = {};
};

/// Reduces a bucket. Called in backward, bucket by bucket in the same order on all ranks, so it
/// must not block, and issues the same operations on all of them. What comes after a collective is
/// a stage for Collectives::run_on_lane():
///
/// ```cpp
/// ddp.register_comm_hook([](fsdp::GradBucket& bucket) -> fsdp::CommHookResult {
///   bucket.buffer().div_(bucket.group().size());
///   return {bucket.group().all_reduce(bucket.buffer(), fsdp::ReduceOp::kSum)};
/// });
/// ```
using CommHook = std::function<CommHookResult(GradBucket& bucket)>;

/// The mean of all ranks, which is what DistributedDataParallel computes without a hook.
FSDP_API CommHook allreduce_hook();

/// The mean of all ranks, computed and sent in float16: cast, divided by the number of ranks,
/// summed up, and cast back. Half the bytes of float32. Memory: half the buckets, kept. The casts
/// run on the reduce lane.
FSDP_API CommHook fp16_compress_hook();

/// As fp16_compress_hook(), in bfloat16.
FSDP_API CommHook bf16_compress_hook();

/// Options of powerSGD_hook(), with the names and values of PyTorch's. The same on all ranks.
struct FSDP_API PowerSGDOptions {
  /// Of the matrix that is sent for a gradient: a higher one loses less.
  int64_t matrix_approximation_rank = 1;
  /// How many backwards are reduced without loss before, at least 2.
  int64_t start_powerSGD_iter = 1000;
  /// A gradient is compressed if its factors have so many times fewer elements.
  double min_compression_rate = 2;
  /// Of the first factors.
  uint64_t random_seed = 0;
};

/// PowerSGD: of each gradient of two or more dimensions, taken as a matrix, the ranks agree on a
/// mean of low rank; what that leaves out is added to the next gradient. Buckets of float16 and
/// bfloat16 and parameters that are not contiguous are reduced without loss. Memory: twice the
/// buckets, kept. The factors are computed on the reduce lane.
///
/// Errors: TORCH_CHECK on a rank or start out of range. Source: Vogels et al., "PowerSGD:
/// practical low-rank gradient compression for distributed optimization".
FSDP_API CommHook powerSGD_hook(const PowerSGDOptions& options = {});

/// @}

}  // namespace fsdp
