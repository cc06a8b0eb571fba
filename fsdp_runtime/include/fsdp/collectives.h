#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <fsdp/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

enum class ReduceOp { kSum, kAvg, kMax };

/// A peer died or left the group during a collective of a CPU backend: this rank is a victim, not
/// the root cause.
class FSDP_API PeerError : public c10::Error {
 public:
  using c10::Error::Error;
};

/// A collective in flight. Dropping it does not cancel it.
class FSDP_API Work {
 public:
  virtual ~Work() = default;
  /// CPU: blocks the host until the result is in place. Throws c10::Error naming the operation and
  /// the expired deadline or the lost peer, the latter as PeerError. CUDA: makes the current stream
  /// wait and returns; it does not report that the operation failed. c10d's watchdog thread notices
  /// a failure or the timeout, aborts the communicator and by default
  /// (TORCH_NCCL_ASYNC_ERROR_HANDLING) ends the process. May be called more than once.
  virtual void wait() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// The answer to Collectives::agree().
class FSDP_API Agreement {
 public:
  virtual ~Agreement() = default;
  /// Blocks the host. Whether all ranks have passed the same value; false also if the backend
  /// cannot tell. The same on all ranks. Throws like Work::wait() on the CPU.
  virtual bool wait() = 0;
};
using AgreementPtr = std::shared_ptr<Agreement>;

/// Two independent queues, like two CUDA streams. Operations of one lane run in issue order; the
/// lanes overlap each other and compute. Parameters are all-gathered on one, gradients
/// reduce-scattered on the other.
enum class Lane { kGather, kReduce };

/// The collectives of one process group, ordered after all work that the caller's current stream
/// (CUDA) or thread (CPU) has issued before. Every rank must issue the same operations with the
/// same sizes in the same order per lane. Tensors are contiguous and must stay alive and unmodified
/// until wait() has returned (CPU) or the stream has passed it. dtypes: float32, float64, bfloat16,
/// float16 for reductions, int32 and int64 too for kSum and kMax; any for gathers and broadcasts.
/// Thread: issue from one thread at a time.
class FSDP_API Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// "shm", "gloo", "nccl", "single" or "recording(<inner>)".
  virtual std::string name() const = 0;
  /// The device of the tensors; CUDA with its index.
  virtual c10::Device device() const { return c10::kCPU; }

  /// output: [size * n], input: [n]. `input` may be output's own slice [rank * n, (rank + 1) * n)
  /// (in place: no copy).
  virtual WorkPtr all_gather_into(at::Tensor output, at::Tensor input,
                                  Lane lane = Lane::kGather) = 0;
  /// output: [n], input: [size * n]. CPU: the sum runs over ranks 0, 1, 2, ... in this order, so
  /// every run gives the same bits; NCCL chooses its own order. kAvg divides the sum by size.
  /// `input` may be overwritten.
  virtual WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                                      Lane lane = Lane::kReduce) = 0;
  virtual WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane lane = Lane::kReduce) = 0;
  virtual WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane lane = Lane::kReduce) = 0;
  /// Host-blocking: returns when every rank has entered.
  virtual void barrier() = 0;

  // Ranks that have left the common order would wait for each other, or exchange one unit for
  // another of the same size. The CPU backends compare what every operation is for, and fail on all
  // ranks with who has issued what. A mark is an operation without data: it ends a part of the
  // program on a lane, so that a rank that waits there for a peer, which has gone on to the other
  // lane, hears of it.

  /// What the next operation, mark or agreement is for, such as "unit layers.0"; the same on all
  /// ranks.
  virtual void name_next(std::string purpose);
  virtual WorkPtr mark(Lane lane);
  /// Asks whether all ranks, which all call it, pass the same value. In the order of the reduce
  /// lane, and a mark on the other. Default: nobody can tell.
  virtual AgreementPtr agree(uint64_t value);

  /// Uninitialised memory that this backend transfers fastest: shape [numel], contiguous, at least
  /// 64-byte aligned. The shared-memory backend returns pages that all ranks map, so that peers
  /// read a gradient slot in place and an all-gather is one copy. Every operation accepts any
  /// tensor; this one is only cheaper. Local call (ranks may differ), any thread. The tensor may
  /// outlive the group. Default: at::empty on device().
  virtual at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype);
};

/// One collective issued through RecordingCollectives.
struct FSDP_API CollectiveRecord {
  std::string operation;  // "all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier"
  Lane lane = Lane::kGather;
  int64_t numel = 0;  // of the larger tensor
  std::string dtype;
  bool operator==(const CollectiveRecord&) const = default;
};

/// Forwards every call to `inner` and records those that move data, to check that all ranks issue
/// the same sequence.
class FSDP_API RecordingCollectives : public Collectives {
 public:
  explicit RecordingCollectives(std::shared_ptr<Collectives> inner);
  int64_t rank() const override;
  int64_t size() const override;
  std::string name() const override;
  c10::Device device() const override;
  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Lane lane) override;
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op, Lane lane) override;
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) override;
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane lane) override;
  void barrier() override;
  void name_next(std::string purpose) override;
  WorkPtr mark(Lane lane) override;
  AgreementPtr agree(uint64_t value) override;
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override;

  const std::vector<CollectiveRecord>& records() const { return records_; }
  void clear() { records_.clear(); }

 private:
  std::shared_ptr<Collectives> inner_;
  std::vector<CollectiveRecord> records_;
};

}  // namespace fsdp
