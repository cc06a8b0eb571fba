#pragma once

/// @file
/// Muon on shards: momentum whose matrices are orthogonalized.

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// @addtogroup optim
/// @{

/// How Muon's learning rate depends on the shape of a matrix of A rows and B columns:
/// torch.optim.Muon's `adjust_lr_fn`.
enum class MuonRate {
  kOriginal,       ///< "original": times sqrt(max(1, A / B)).
  kMatchRmsAdamW,  ///< "match_rms_adamw": times 0.2 * sqrt(max(A, B)), for rates of AdamW.
};

/// Those of Python's torch.optim.Muon (PyTorch 2.11), with its defaults.
struct FSDP_API MuonOptions {
  double lr = 1e-3;           ///< Learning rate, at least 0.
  double weight_decay = 0.1;  ///< Times `lr`: taken off the parameter, at least 0.
  double momentum = 0.95;     ///< At least 0.
  bool nesterov = true;       ///< Looks ahead by one more update of the momentum.
  /// a, b and c of an iteration: X becomes a X + (b A + c A A) X, where A is X times its transpose.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;                            ///< The least norm that is divided by; at least 0.
  int64_t ns_steps = 5;                         ///< Iterations, from 0 to 99.
  MuonRate adjust_lr_fn = MuonRate::kOriginal;  ///< See there.
};

/// Parameters with options of their own: an entry of Python's `param_groups`.
struct FSDP_API MuonParamGroup {
  /// As FSDPModule::sharded_parameters() names them. All of them matrices.
  std::vector<std::string> params;
  MuonOptions options = {};  ///< Of all of them.
};

/// What Newton-Schulz makes of `update`, [A, B] of any dtype: bfloat16, [A, B], with singular
/// values near 1. The kernels of torch.optim.Muon in the same order.
FSDP_API at::Tensor orthogonalize(const at::Tensor& update, const MuonOptions& options = {});

/// torch.optim.Muon on shards of matrices, for the hidden layers of a model. Embedding, head, norms
/// and biases are for another optimizer, which shares the model:
///
/// ```cpp
/// fsdp::Muon muon(sharded, {{.params = matrices, .options = {.lr = 0.02}}});
/// fsdp::AdamW rest(sharded, {{.params = others}}, {.lr = 3e-4});
/// ```
///
/// An update is orthogonalized as a whole. So the matrices are dealt over the ranks that divide the
/// parameters, so that all have about as much to do; each step gathers the updates in bfloat16,
/// which is what torch.optim.Muon computes in, unit by unit; each rank orthogonalizes its own
/// matrices; and a reduce-scatter for each unit brings everybody its parts. On the wire that is as
/// much as a forward with parameters in bfloat16 and the reduction of its gradients in that.
/// Memory, for the time of a step: two units in bfloat16; 2 bytes for each element of the matrices
/// that are this rank's to orthogonalize, which are whole ones, whatever its shards are; 2 bytes
/// for each element of its shards; and, for one matrix at a time, once more its size in bfloat16
/// and twice the square of its shorter side. Ranks with copies of shards do the same work.
///
/// Bits do not depend on how many ranks there are, if gradients do not: a rank's momentum is
/// updated element by element, as Python's.
///
/// Thread: the rank's, between the end of a backward and the next forward. All ranks make the same
/// calls.
class FSDP_API Muon {
 public:
  /// Errors: as AdamW::AdamW(), and TORCH_CHECK on a parameter that is no matrix.
  Muon(FSDPModule root, const std::vector<MuonParamGroup>& groups);
  ~Muon();
  Muon(const Muon&) = delete;             ///< It is its parameters'.
  Muon& operator=(const Muon&) = delete;  ///< As well.

  /// Updates every parameter that has a gradient. `found_inf`: as GradScaling::found_inf; if it is
  /// not 0, nothing changes; on CUDA the host does not learn of it. Collective over the ranks that
  /// divide the parameters, unless the host sees that nothing changes. If it throws before it
  /// has begun to update, for a lost peer for one, nothing has changed; in the middle: as
  /// AdamW::step().
  void step(const at::Tensor& found_inf = {});
  /// As AdamW::zero_grad().
  void zero_grad();

  /// @name Param groups, by number
  /// From 0, in the order of the constructor. Errors: TORCH_CHECK if there is none of that number.
  /// @{

  /// How many there are.
  size_t group_count() const;
  /// Of a group.
  const MuonOptions& options(size_t group = 0) const;
  /// The names of its parameters.
  const std::vector<std::string>& params(size_t group = 0) const;
  /// Takes effect at the next step. Errors: TORCH_CHECK on an option out of its range.
  void set_options(size_t group, const MuonOptions& options);
  /// Of all groups.
  void set_lr(double lr);

  /// @}

  /// The momentum of each parameter, `momentum_buffer` of Python's state, for checkpoints: this
  /// rank's parts, as AdamW::exp_avg().
  std::vector<LocalShard> momentum_buffer() const;
  /// Number of updates of each parameter, as AdamW::parameter_steps(). Python does not keep it.
  std::vector<int64_t> parameter_steps() const;
  /// For resuming. Errors: as AdamW::set_parameter_steps().
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// @}

}  // namespace fsdp
