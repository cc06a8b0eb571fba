#pragma once

/// @file
/// Stochastic gradient descent on shards.

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdp {

/// @addtogroup optim
/// @{

/// Those of Python's torch.optim.SGD, with its defaults.
struct FSDP_API SGDOptions {
  double lr = 1e-3;         ///< Learning rate, at least 0.
  double momentum = 0;      ///< At least 0; 0: there is no momentum_buffer.
  double dampening = 0;     ///< 1 less this: times the gradient that goes into the buffer.
  double weight_decay = 0;  ///< Times the parameter: added to the gradient, at least 0.
  bool nesterov = false;    ///< Needs a momentum above 0, and no dampening.
};

/// Parameters with options of their own: an entry of Python's `param_groups`.
struct FSDP_API SGDParamGroup {
  /// As FSDPModule::sharded_parameters() names them.
  std::vector<std::string> params;
  SGDOptions options = {};  ///< Of all of them.
};

/// SGD on the flat shards of all units under `root`. CPU: bit-equal to Python's torch.optim.SGD
/// with default arguments on the same gradients (same ATen kernels, applied to cache-sized pieces).
/// CUDA: LibTorch's fused kernel. The state has the parameters' dtype and exists only for what this
/// rank holds of the parameters that are optimized with momentum: as many bytes.
///
/// Thread: the rank's, between the end of a backward and the next forward. All ranks make the same
/// calls.
class FSDP_API SGD {
 public:
  /// One group with all parameters. Errors: TORCH_CHECK on an empty handle, a module without
  /// parameters, and an option out of its range.
  SGD(const FSDPModule& root, const SGDOptions& options);
  /// Several. As in Python, a parameter that no group names is not optimized. Errors: as
  /// AdamW::AdamW().
  SGD(FSDPModule root, const std::vector<SGDParamGroup>& groups);
  ~SGD();
  SGD(const SGD&) = delete;             ///< It is its parameters'.
  SGD& operator=(const SGD&) = delete;  ///< As well.

  /// Updates every parameter that has a gradient, as AdamW::step(). `found_inf`: as
  /// GradScaling::found_inf; if it is not 0, nothing changes. On CUDA the host does not learn of
  /// it, and an update of which it was so counts as the first one with momentum: with dampening,
  /// the next one differs from a first one, as Python's fused SGD.
  void step(const at::Tensor& found_inf = {});
  /// As AdamW::zero_grad().
  void zero_grad();

  /// @name Param groups, by number
  /// From 0, in the order of the constructor. Errors: TORCH_CHECK if there is none of that number.
  /// @{

  /// How many there are.
  size_t group_count() const;
  /// Of a group.
  const SGDOptions& options(size_t group = 0) const;
  /// The names of its parameters.
  const std::vector<std::string>& params(size_t group = 0) const;
  /// Takes effect at the next step. Errors: TORCH_CHECK on an option out of its range.
  void set_options(size_t group, const SGDOptions& options);
  /// Of all groups.
  void set_lr(double lr);

  /// @}

  /// The momentum of each parameter, `momentum_buffer` of Python's state, for checkpoints: this
  /// rank's parts, as AdamW::exp_avg(), without those that have no momentum.
  std::vector<LocalShard> momentum_buffer() const;
  /// Number of updates of each parameter, as AdamW::parameter_steps(). Python does not keep it.
  std::vector<int64_t> parameter_steps() const;
  /// For resuming: a parameter of which it is 0 begins its momentum anew. Errors: as
  /// AdamW::set_parameter_steps().
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// @}

}  // namespace fsdp
