#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {

/// One unit: the state machine that drives its parameter groups through forward and backward.
///
/// Most units have one group. Parameters that differ in dtype or in requires_grad are kept apart,
/// because a group has one dtype and is reduced as a whole; a root whose parameters all belong to
/// nested units has none.
class ModuleState : public std::enable_shared_from_this<ModuleState> {
 public:
  enum class Training { kIdle, kForward, kPreBackward, kPostBackward };

  ModuleState(const std::shared_ptr<torch::nn::Module>& module, FullyShardOptions options,
              std::vector<std::shared_ptr<ParamGroup>> groups);

  void pre_forward(std::vector<at::Tensor*>& inputs);
  void post_forward(std::vector<at::Tensor*>& outputs);
  void abandon_forward() noexcept;
  void pre_backward();
  void post_backward();
  /// A gradient of parameter `index` of `group` is ready; takes it over.
  void on_gradient(ParamGroup& group, size_t index, const at::Tensor& parameter);

  void start_unshard();
  void finish_unshard();
  void reshard();
  bool is_sharded() const;
  /// Drops unreduced gradients and gathered parameters after a failed backward.
  void abandon_backward();

  /// Makes `context` this unit's; `index` names it there, 0 is the root.
  void adopt(std::shared_ptr<RunContext> context, int64_t index);

  // The uses of this unit whose post-backward is still to come, by forward of the root: a unit that
  // is called twice in one forward is reduced once, after the last of its uses.
  void add_use(int64_t forward_id);
  /// Returns whether other uses of that forward remain.
  bool remove_use(int64_t forward_id);

  /// TORCH_CHECK if the module is gone.
  std::shared_ptr<torch::nn::Module> module() const;
  const std::vector<std::shared_ptr<ParamGroup>>& groups() const { return groups_; }
  RunContext& context() const { return *context_; }
  int64_t index() const { return index_; }
  bool is_root() const { return index_ == 0; }
  Training training() const { return training_; }

  bool requires_gradient_sync = true;
  bool reshard_after_backward = true;
  std::optional<bool> reshard_after_forward;
  /// Gathered ahead instead of the predicted unit when not empty.
  std::vector<std::weak_ptr<ModuleState>> forward_prefetch;
  std::vector<std::weak_ptr<ModuleState>> backward_prefetch;

 private:
  bool reshards_after_forward() const { return reshard_after_forward.value_or(!is_root()); }
  void cast(std::vector<at::Tensor*>& tensors, std::optional<at::ScalarType> dtype) const;
  void hook_inputs(std::vector<at::Tensor*>& inputs);
  void hook_outputs(std::vector<at::Tensor*>& outputs);
  /// Tells the context once per use that this unit's backward has begun.
  void announce_backward();

  const std::weak_ptr<torch::nn::Module> module_;
  const FullyShardOptions options_;
  // The groups hand their slots back to the context when they go, so it goes after them.
  std::shared_ptr<RunContext> context_;
  std::vector<std::shared_ptr<ParamGroup>> groups_;
  int64_t index_ = 0;
  Training training_ = Training::kIdle;
  bool is_backward_announced_ = false;
  std::vector<std::pair<int64_t, int64_t>> uses_;  // forward id -> count; few
};

}  // namespace fsdp
