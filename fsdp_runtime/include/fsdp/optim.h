#pragma once

#include <fsdp/fully_shard.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdp {

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
/// cache-sized pieces). CUDA: one fused call per segment. The state has the parameters' dtype and
/// exists only for this rank's shard: 2 x shard bytes.
class FSDP_API AdamW {
 public:
  AdamW(FSDPModule root, AdamWOptions options);

  /// Updates every parameter that has a gradient, that is, that some rank has used since the last
  /// zero_grad(). The others keep their value, moments and step count, as in Python where `.grad`
  /// is None.
  void step();
  /// Drops all gradients: the sharded ones, and those collected without a reduction or left behind
  /// by a backward that failed.
  void zero_grad();
  void set_lr(double lr) { options_.lr = lr; }
  double lr() const { return options_.lr; }

  /// Optimizer state per parameter for checkpoints: slices named by the parameter's fqn, in
  /// sharded_parameters() order.
  std::vector<ShardedSlice> exp_avg() const;
  std::vector<ShardedSlice> exp_avg_sq() const;
  /// Steps taken so far. Setting it is for resuming when every parameter took part in every step.
  int64_t step_count() const { return step_count_; }
  void set_step_count(int64_t step_count);
  /// Number of updates of each parameter (`step` of Python's optimizer state), in
  /// sharded_parameters() order; 0 for frozen ones. Counts differ if parameters had no gradient in
  /// some of the steps. Equal on all ranks.
  std::vector<int64_t> parameter_steps() const;
  /// For resuming, in the same order. Errors: TORCH_CHECK on a negative count. Nothing is set then.
  void set_parameter_steps(const std::vector<int64_t>& steps);

 private:
  struct GroupState;
  std::shared_ptr<GroupState> state_of(const ParamGroup* group) const;
  std::vector<ShardedSlice> slices_of(at::Tensor GroupState::*tensor) const;

  FSDPModule root_;
  AdamWOptions options_;
  int64_t step_count_ = 0;
  std::vector<std::shared_ptr<GroupState>> groups_;
};

}  // namespace fsdp
