#pragma once

/// @file
/// AdamW on shards, and gradient scaling.

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fsdp {

struct ParamRef;

/// @addtogroup optim
/// @{

/// Those of Python's torch.optim.AdamW, with its defaults.
struct FSDP_API AdamWOptions {
  double lr = 1e-3;            ///< Learning rate, at least 0.
  double beta1 = 0.9;          ///< Decay of the mean of gradients, in [0, 1).
  double beta2 = 0.999;        ///< Decay of the mean of their squares, in [0, 1).
  double eps = 1e-8;           ///< Added to the denominator, at least 0.
  double weight_decay = 1e-2;  ///< Times `lr`: taken off the parameter, at least 0.
  /// On the CPU: by LibTorch's fused kernel, as Python's `fused=True`, which goes through memory
  /// once: a step in a fraction of the time, with other last bits than Python's default. On CUDA it
  /// always is. Of all param groups alike.
  bool fused = false;
};

/// Parameters with options of their own: an entry of Python's `param_groups`.
struct FSDP_API AdamWParamGroup {
  /// As FSDPModule::sharded_parameters() names them, which has their shapes, too.
  std::vector<std::string> params;
  std::optional<double> lr = std::nullopt;            ///< Unset: that of the defaults.
  std::optional<double> beta1 = std::nullopt;         ///< As `lr`.
  std::optional<double> beta2 = std::nullopt;         ///< As `lr`.
  std::optional<double> eps = std::nullopt;           ///< As `lr`.
  std::optional<double> weight_decay = std::nullopt;  ///< As `lr`.
};

/// What a gradient scaler tells a step, as torch.amp.GradScaler tells a fused optimizer: one
/// element each, float32, on the parameters' device, equal on all ranks. Undefined: no scaler.
struct FSDP_API GradScaling {
  /// By which the loss was multiplied: the step divides the gradients by it, in place.
  at::Tensor grad_scale = {};
  /// If it is not 0, the step changes nothing: parameters, moments, step counts and gradients stay
  /// as they are. See GradScaler and fsdp::found_inf().
  at::Tensor found_inf = {};
};

/// AdamW on the flat shards of all units under `root`. CPU float32: bit-equal to Python's
/// torch.optim.AdamW with default arguments on the same gradients (same ATen kernels, applied to
/// cache-sized pieces), or with `fused` to that with `fused=True`. CUDA: one fused call for all
/// shards of one dtype and param group; rates and step counts are on the device, and the host waits
/// for neither. The state has the parameters' dtype and exists only for what this rank holds of the
/// parameters that are optimized: twice as many bytes.
///
/// Thread: the rank's, between the end of a backward and the next forward. All ranks make the same
/// calls.
class FSDP_API AdamW {
 public:
  /// One group with all parameters. Errors: TORCH_CHECK on an empty handle, a module without
  /// parameters, and an option out of its range.
  AdamW(const FSDPModule& root, const AdamWOptions& options);
  /// Several, with `defaults` for the options that a group does not set:
  ///
  /// ```cpp
  /// fsdp::AdamW optimizer(sharded,
  ///                       {{.params = matrices}, {.params = rest, .weight_decay = 0.0}},
  ///                       {.lr = 3e-4});
  /// ```
  ///
  /// As in Python, a parameter that no group names is not optimized: it has no state, and
  /// zero_grad() leaves its gradient, so that several optimizers can share a model. Frozen ones may
  /// be named. Errors: TORCH_CHECK, with the group's number, on no groups, a group without
  /// parameters, a name that is none, a parameter that is named twice (both groups), and an option
  /// out of its range.
  AdamW(FSDPModule root, const std::vector<AdamWParamGroup>& groups, const AdamWOptions& defaults);

  /// Updates every parameter that has a gradient, that is, that some rank has used since the last
  /// zero_grad(). The others keep their value, moments and step count, as in Python where `.grad`
  /// is None. With a `found_inf` that is not 0 all do; on CUDA the host does not learn of it.
  /// CUDA: throws if a group has failed by now; if one fails later, before the device has got here,
  /// the gradients of this step may not have arrived, and the next call of the group says so.
  /// Whoever goes on with the shards then has to read something from the device after the backward,
  /// such as the norm that it clips by, before it calls this.
  ///
  /// If it throws before it has begun to update, for a lost peer for one, nothing has changed. If
  /// it throws in the middle, out of memory for one, some parameters have done the step and others
  /// have not: this and parameter_steps() throw from then on, until set_parameter_steps() or
  /// set_step_count() says that parameters and state have been loaded anew.
  ///
  /// Nobody waits here for the others. So if a group fails about now, some ranks have done this
  /// step and others have not, whatever they have read: whoever goes on with the shards (in the
  /// world of Collectives::shrink(), for one) first compares parameter_steps() over it. Those that
  /// are behind take parameters and state from a copy that is not, or all go back to a checkpoint.
  void step(const GradScaling& scaling = {});
  /// Drops the gradients of the parameters that are optimized: the sharded ones, and those
  /// collected without a reduction or left behind by a backward that failed. In a unit of which
  /// only some parameters are optimized, it waits until the gradients have arrived, and throws like
  /// Work::wait().
  void zero_grad();

  /// @name Param groups, by number
  /// From 0, in the order of the constructor. Errors: TORCH_CHECK if there is none of that number.
  /// @{

  /// How many there are.
  size_t group_count() const { return options_.size(); }
  /// With the defaults for what the group did not set.
  const AdamWOptions& options(size_t group = 0) const;
  /// The names of its parameters.
  const std::vector<std::string>& params(size_t group = 0) const;
  /// For schedules: takes effect at the next step, and costs nothing that grows with the
  /// parameters. Errors: TORCH_CHECK on an option out of its range.
  void set_options(size_t group, const AdamWOptions& options);
  /// As set_options(), of the learning rate alone.
  void set_lr(size_t group, double lr);
  /// Of all groups.
  void set_lr(double lr);

  /// @}

  /// Means of the gradients, per parameter, for checkpoints: this rank's parts, named by the
  /// parameter's fqn and in its dtype, in sharded_parameters() order, without those that are not
  /// optimized. Views: writing them sets the state. For whole tensors see
  /// get_optimizer_state_dict().
  std::vector<LocalShard> exp_avg() const;
  /// Means of their squares, likewise.
  std::vector<LocalShard> exp_avg_sq() const;
  /// Number of updates of the parameter that has done most. CUDA: blocks the host until the device
  /// has counted them. Throws like step() after one that failed in the middle.
  int64_t step_count() const;
  /// For resuming when every parameter took part in every step.
  void set_step_count(int64_t step_count);
  /// Number of updates of each parameter (`step` of Python's optimizer state), in
  /// sharded_parameters() order; 0 for those that are not optimized. Counts differ if parameters
  /// had no gradient in some of the steps. Equal on all ranks, unless they have stepped after an
  /// all-reduce hook threw on some of them only, or when a group failed: see step(). CUDA: blocks
  /// the host until the device has counted them.
  std::vector<int64_t> parameter_steps() const;
  /// For resuming, in the same order. Errors: TORCH_CHECK on a negative count, and on counts of
  /// another number of parameters. Nothing is set then.
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  friend class GradScaler;
  /// @cond
  friend FSDP_API RemovableHandle
  apply_optimizer_in_backward(const std::shared_ptr<AdamW>& optimizer);
  /// @endcond
  class InBackward;
  struct UnitState;
  struct Updates;
  /// `inv_scale`: by which gradients are multiplied, on the CPU alone.
  void step(const GradScaling& scaling, double inv_scale);
  void add_unit_group(const std::shared_ptr<ParamGroup>& group, const std::vector<ParamRef>& params,
                      const std::vector<std::optional<size_t>>& group_of);
  std::vector<LocalShard> slices_of(at::Tensor UnitState::*tensor) const;
  void renew_updates();
  /// Of these units; gives parameters that no longer step together counters of their own.
  std::shared_ptr<Updates> make_updates(const std::vector<std::shared_ptr<UnitState>>& units);
  void step_in_backward(ParamGroup& group);
  void check_steps_behind_backward() const;
  void list_unit(const UnitState& state, Updates& updates);
  void update(Updates& updates, const GradScaling& scaling, double inv_scale);
  void set_counters(const std::vector<int64_t>& steps);
  /// Of each parameter that is optimized.
  std::vector<int64_t> updates_done() const;
  void check_group(size_t group) const;
  void check_scaling(const GradScaling& scaling) const;
  void check_whole() const;

  FSDPModule root_;
  // By param group.
  std::vector<std::vector<std::string>> params_;
  std::vector<AdamWOptions> options_;
  std::vector<at::Tensor> lrs_;  // of options_, on the device; empty if there is nothing to train

  std::vector<std::shared_ptr<UnitState>> units_;  // of the groups of the units
  bool is_torn_ = false;                           // a step has thrown in the middle
  bool steps_in_backward_ = false;
  int64_t backward_ = -1;             // in which it has stepped last, by number
  std::vector<size_t> counter_of_;    // by parameter that is optimized, in their order
  std::vector<at::Tensor> counters_;  // updates done, 0-dim, on the device
  std::shared_ptr<Updates> updates_;  // null: to be made
};

/// PyTorch's _apply_optimizer_in_backward: from the next backward on, `optimizer` updates a unit's
/// parameters as soon as their gradients have been reduced, and drops these, so that the gradients
/// of two units exist at a time instead of those of the whole model. (Of each dtype; with an
/// offload policy the host's memory for gradients stays.)
///
/// ```cpp
/// auto optimizer = std::make_shared<fsdp::AdamW>(sharded, fsdp::AdamWOptions{.lr = 1e-3});
/// fsdp::apply_optimizer_in_backward(optimizer);
/// ```
///
/// With the bits of a step behind the backward. That is not needed then, and has nothing to do.
/// Rates can be set between backwards, state is got and set as ever, and once the optimizer is gone
/// nothing steps. Micro batches, what cannot follow, and errors: see
/// FSDPModule::register_post_accumulate_grad_hook(). A backward that throws has done the step for
/// some of the parameters only, which the optimizer says as one that has failed in the middle.
/// Hooks that are to see, or change, the gradient are registered before: once it has been dropped,
/// those that come later are not called.
/// Errors: TORCH_CHECK on null, in a backward, and if it does so already. GradScaler::step()
/// refuses it. Thread: the rank's. All ranks make the same calls.
FSDP_API RemovableHandle apply_optimizer_in_backward(const std::shared_ptr<AdamW>& optimizer);

/// Whether a gradient under `root`, on any rank, has an element that is infinite or NaN: 1 or 0,
/// 0-dim float32 on the parameters' device, for AdamW::step() and `at::_amp_update_scale_`. For a
/// scaler of your own: GradScaler does all of it. Reads each gradient once and writes none.
/// Collective over the unit on most ranks, those with copies included, which must be all ranks of
/// the others; they get the same answer. CUDA: the host does not wait. Gradients that have been
/// dropped do not count. Throws like clip_grad_norm_.
FSDP_API at::Tensor found_inf(const FSDPModule& root);

/// The same, of the gradients as they are, which it multiplies by `inv_scale`, in place: what
/// GradScaler.unscale_ does, for whoever clips or looks at gradients of a scaled loss. The step
/// then gets no `grad_scale`. `inv_scale`: 1 / scale, one element, float32, on the parameters'
/// device. CUDA: no gradients in bfloat16, as with torch.amp.GradScaler.
FSDP_API at::Tensor unscale_gradients_(const FSDPModule& root, const at::Tensor& inv_scale);

/// @}

}  // namespace fsdp
