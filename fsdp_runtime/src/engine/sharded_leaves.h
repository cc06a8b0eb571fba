#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "fsdp_runtime/src/engine/gradient_reducer.h"
#include "fsdp_runtime/src/engine/parameter_uses.h"
#include "fsdp_runtime/src/engine/shard_store.h"

namespace fsdp {

/// This rank's parts of a group's parameters as leaves of autograd, for optimizers that know
/// nothing of sharding: each has a `.grad` after backward, undefined where the parameter has no
/// gradient. Both are views: what the optimizer writes is the shard, and what it reads is the
/// gradient that the reducer keeps.
///
/// An optimizer says by `.grad` what it wants of the next backward. Undefined: to begin anew.
/// Zeroed in place, or left as it is: to be added to.
///
/// Thread: the rank's.
class ShardedLeaves {
 public:
  /// `requires_grad`: of all. The leaves hold `store`'s shard.
  ShardedLeaves(ShardStore& store, bool requires_grad);

  /// In the shape of this rank's chunk, or [elements that this rank holds] of a flat range; one per
  /// parameter, in the order of the group.
  const std::vector<at::Tensor>& tensors() const { return leaves_; }

  /// After a backward: shows the gradients in `.grad`.
  void show(const GradientReducer& reducer, const ParameterUses& uses);
  /// Before gradients are added: drops those that have been taken out of `.grad` since show(), and
  /// takes those that somebody has put there. No-op until the next show().
  void take_back(GradientReducer& reducer, ParameterUses& uses);
  /// Takes what somebody has put into `.grad` instead of what was shown, for whoever reads the
  /// gradient from the reducer, and shows that again.
  void take_replaced();
  /// Whether the optimizer has been shown the gradients and has not dropped this one.
  bool is_dropped(size_t index) const { return is_shown_ && !leaves_[index].grad().defined(); }
  /// The gradients are dropped.
  void clear();

 private:
  void make_gradients(const at::Tensor& flat);

  const ShardStore& store_;
  std::vector<at::Tensor> leaves_;
  std::vector<at::Tensor> gradients_;  // parts of the reducer's memory; none before the first
  const void* memory_ = nullptr;       // which that was
  bool is_shown_ = false;              // since the last take_back()
};

}  // namespace fsdp
