#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/export.h>
#include <fsdp/optim.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp {

/// A scaler's tensors as the fused kernel takes them, made on the device.
class FSDP_API FusedScaling {
 public:
  explicit FusedScaling(const GradScaling& scaling);
  /// Counts an update that takes place.
  void count(const std::vector<at::Tensor>& counters) const;

  const std::optional<at::Tensor>& grad_scale() const { return grad_scale_; }
  const std::optional<at::Tensor>& found_inf() const { return found_inf_; }

 private:
  std::optional<at::Tensor> grad_scale_;
  std::optional<at::Tensor> found_inf_;  // 0 or 1: the kernel compares with 1
};

/// What the gradients are multiplied by, in place, before they are used: 1 / divisor, as a fused
/// kernel does, or `factor`, as GradScaler.unscale_ does, whose bits differ from it if the scale is
/// no power of two.
struct FSDP_API GradientFactor {
  double divisor = 1;
  double factor = 1;
};

/// Parts of flat shards that are updated in one call: all of one dtype and param group. Entry i of
/// each vector is about part i, flat and contiguous.
class FSDP_API AdamWList {
 public:
  AdamWList(at::ScalarType dtype, size_t param_group) : dtype_(dtype), param_group_(param_group) {}

  struct Part {
    at::Tensor param;
    at::Tensor gradient;
    at::Tensor exp_avg;
    at::Tensor exp_avg_sq;
    at::Tensor steps;  // 0-dim on the device of the part; parts may share it
    at::Tensor copy;   // gets the updated parameter in its own dtype; may be undefined; CPU only
  };
  void add(const Part& part);

  at::ScalarType dtype() const { return dtype_; }
  size_t param_group() const { return param_group_; }

  /// One update, whose number `steps` is already. The ATen kernels of torch.optim.AdamW's default
  /// path in the same order, on cache-sized pieces, which the threads share: bit-equal to Python's
  /// on the CPU. Results do not depend on the piece boundaries. The gradients are multiplied
  /// by `scaling` first, in place. Parts on disk are in memory a portion at a time: it is written
  /// out while the next one is updated, and its pages are given back behind that.
  void apply_in_pieces(const AdamWOptions& options, const GradientFactor& scaling = {});
  /// The same by LibTorch's fused kernel, as torch.optim.AdamW(fused=True) on the CPU: each value
  /// is read and written once, and the last bits are others. For many elements in about a third of
  /// the time.
  void apply_in_one_pass(const AdamWOptions& options, const GradientFactor& scaling = {});
  /// One update by LibTorch's fused kernel, of parts without copies. `lr`: 0-dim, on the device of
  /// the parts. The host reads neither this nor a step count nor `scaling`: it waits for nothing.
  void apply_fused(const AdamWOptions& options, const at::Tensor& lr, const FusedScaling& scaling);

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
    GradientFactor scaling;
  };

  static Scalars scalars_of(const AdamWOptions& options, const at::Tensor& steps,
                            const GradientFactor& scaling);
  void update_pieces(size_t first, size_t end, const AdamWOptions& options,
                     const std::vector<Scalars>& scalars);
  /// Calls `update(first, end)` for all pieces, or for portions of them, which are given back
  /// behind.
  template <class Update>
  void update_in_portions(Update update);
  /// Calls `use(part, begin, numel)` for what pieces [first, end) are of, part by part.
  template <class Use>
  void for_ranges(size_t first, size_t end, Use use) const;
  /// What pieces [first, end) are of, as a list of its own.
  AdamWList portion(size_t first, size_t end) const;
  /// All of it by LibTorch's fused kernel.
  void update_whole(const AdamWOptions& options, const GradientFactor& scaling);
  void update_piece(const Piece& piece, const AdamWOptions& options, const Scalars& scalars,
                    at::Tensor& scratch);

  at::ScalarType dtype_;
  size_t param_group_;
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor> exp_avgs_;
  std::vector<at::Tensor> exp_avg_sqs_;
  std::vector<at::Tensor> steps_;
  std::vector<at::Tensor> copies_;
  std::vector<Piece> pieces_;  // of all parts
  bool is_some_on_disk_ = false;
};

}  // namespace fsdp
