#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/optim.h>

#include <cstdint>
#include <vector>

namespace fsdp {

/// Parts of flat shards that are updated in one call: all of one dtype, all with or all without
/// weight decay. Entry i of each vector is about part i, flat and contiguous.
class FSDP_API AdamWList {
 public:
  AdamWList(at::ScalarType dtype, bool decays) : dtype_(dtype), decays_(decays) {}

  struct Part {
    at::Tensor param;
    at::Tensor gradient;
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor steps;  // 0-dim on the device of the part; parts may share it
    at::Tensor copy;   // gets the updated parameter in its own dtype; may be undefined; CPU only
  };
  void add(const Part& part);

  bool holds(at::ScalarType dtype, bool decays) const {
    return dtype == dtype_ && decays == decays_;
  }

  /// One update, whose number `steps` is already. The ATen kernels of torch.optim.AdamW's default
  /// path in the same order, on cache-sized pieces, which the threads share: bit-equal to Python's
  /// on the CPU. Results do not depend on the piece boundaries.
  void apply_in_pieces(const AdamWOptions& options);
  /// One update by LibTorch's fused kernel, of parts without copies. `lr`: 0-dim, on the device of
  /// the parts. Neither the rate nor the step counts are read by the host, so that it can be
  /// captured in a CUDA graph.
  void apply_fused(const AdamWOptions& options, const at::Tensor& lr);

 private:
  /// Elements [begin, end) of a part.
  struct Piece {
    size_t part;
    int64_t begin;
    int64_t end;
  };
  /// The scalars of one update, computed in double as Python computes them.
  struct Scalars {
    double step_size;              // lr / (1 - beta1^t)
    double bias_correction2_sqrt;  // sqrt(1 - beta2^t)
  };

  static Scalars scalars_of(const AdamWOptions& options, const at::Tensor& steps);
  void update_piece(const Piece& piece, const AdamWOptions& options, const Scalars& scalars,
                    at::Tensor& scratch);

  at::ScalarType dtype_;
  bool decays_;
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> exp_avgs_;
  std::vector<at::Tensor> exp_avg_sqs_;
  std::vector<at::Tensor> steps_;
  std::vector<at::Tensor> copies_;
  std::vector<Piece> pieces_;  // of all parts
};

}  // namespace fsdp
