#pragma once

#include <fsdp/fully_shard.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

struct ParamRef;

struct FSDP_API AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  /// Parameters for which this is true get no weight decay. Unset: every parameter decays, as
  /// torch.optim.AdamW does.
  std::function<bool(const std::string& fqn)> no_decay;
};

/// AdamW on the flat shards of all units under `root`. CPU float32: bit-equal to Python's
/// torch.optim.AdamW with default arguments on the same gradients (same ATen kernels, applied to
/// cache-sized pieces). CUDA: one fused call for all shards of one dtype with or without decay;
/// rate and step counts are on the device and the host reads neither, so that steps in which the
/// same parameters have gradients can be captured in a CUDA graph (set_lr() belongs outside of it).
/// The state has the parameters' dtype and exists only for this rank's shard: 2 x shard bytes.
class FSDP_API AdamW {
 public:
  AdamW(FSDPModule root, AdamWOptions options);

  /// Updates every parameter that has a gradient, that is, that some rank has used since the last
  /// zero_grad(). The others keep their value, moments and step count, as in Python where `.grad`
  /// is None. CUDA: throws if a group has failed by now; if one fails later, before the device has
  /// got here, the gradients of this step may not have arrived, and the next call of the group says
  /// so. Whoever goes on with the shards then has to read something from the device after the
  /// backward, such as the norm that it clips by, before it calls this.
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
  void step();
  /// Drops all gradients: the sharded ones, and those collected without a reduction or left behind
  /// by a backward that failed.
  void zero_grad();
  void set_lr(double lr);
  double lr() const { return options_.lr; }

  /// Optimizer state per parameter for checkpoints: slices named by the parameter's fqn, in
  /// sharded_parameters() order.
  std::vector<LocalShard> exp_avg() const;
  std::vector<LocalShard> exp_avg_sq() const;
  /// Calls of step() so far, not those of a captured graph. Setting it is for resuming when every
  /// parameter took part in every step.
  int64_t step_count() const { return step_count_; }
  void set_step_count(int64_t step_count);
  /// Number of updates of each parameter (`step` of Python's optimizer state), in
  /// sharded_parameters() order; 0 for frozen ones. Counts differ if parameters had no gradient in
  /// some of the steps. Equal on all ranks, unless they have stepped after an all-reduce hook threw
  /// on some of them only, or when a group failed: see step(). CUDA: blocks the host until the
  /// device has counted them.
  std::vector<int64_t> parameter_steps() const;
  /// For resuming, in the same order. Errors: TORCH_CHECK on a negative count. Nothing is set then.
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  struct GroupState;
  struct Updates;
  void add_group(const std::shared_ptr<ParamGroup>& group, const std::vector<ParamRef>& params);
  std::shared_ptr<GroupState> state_of(const ParamGroup* group) const;
  std::vector<LocalShard> slices_of(at::Tensor GroupState::*tensor) const;
  bool is_current(const Updates& updates) const;
  void renew_updates();
  void list_group(const GroupState& state, Updates& updates);
  void set_counters(const std::vector<int64_t>& steps);
  void check_whole() const;

  FSDPModule root_;
  AdamWOptions options_;
  at::Tensor lr_;  // options_.lr on the device; undefined if there is nothing to train
  int64_t step_count_ = 0;
  std::vector<std::shared_ptr<GroupState>> groups_;
  bool is_torn_ = false;              // a step has thrown in the middle
  std::vector<size_t> counter_of_;    // by parameter, in the order of the groups
  std::vector<at::Tensor> counters_;  // updates done, 0-dim, on the device
  std::shared_ptr<Updates> updates_;  // null: to be made
};

}  // namespace fsdp
