#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/autograd_hooks.h"
#include "fsdp_runtime/src/engine/modules_to_run.h"
#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/engine/run_context.h"
#include "fsdp_runtime/src/engine/unit_buffers.h"
#include "fsdp_runtime/src/engine/unit_trace.h"
#include "fsdp_runtime/src/engine/unit_uses.h"

namespace fsdp {

/// One unit (FSDP2's FSDPState): the state machine that drives its parameter groups through forward
/// and backward.
///
/// Most units have one group. Parameters that differ in dtype or in requires_grad are in separate
/// groups, because a group has one dtype and is reduced as a whole; a root whose parameters all
/// belong to nested units has none.
class ModuleState : public std::enable_shared_from_this<ModuleState> {
 public:
  enum class Training { kIdle, kForward, kPreBackward };

  /// Of one module, or of several that are one unit. Collective over the mesh's group that divides
  /// the parameters.
  ModuleState(const std::vector<std::shared_ptr<torch::nn::Module>>& modules,
              FullyShardOptions options, std::vector<std::shared_ptr<ParamGroup>> groups);

  // Of a call of `called`, one of modules().
  std::vector<detail::InputVersion> pre_forward(const torch::nn::Module& called,
                                                std::vector<at::Tensor*>& inputs);
  void post_forward(const torch::nn::Module& called, std::vector<at::Tensor*>& outputs,
                    const std::vector<detail::InputVersion>& inputs);
  void abandon_forward() noexcept;
  /// Ends the forward of a unit of several modules of which some have not been called. No-op
  /// otherwise.
  void end_open_forward();
  /// The same when the root's forward has failed, which is why they have not. Leaves the parameters
  /// to the caller.
  void abandon_open_forward();
  void pre_backward();
  /// The backward of one use ends, that of PostBackwardNode `use`.
  void end_use(const torch::autograd::Node& use);
  /// The unit's part of a backward ends: starts the reduction of all gradients collected so far, if
  /// gradients are to be reduced, and of what the row has kept, if that is to be all-reduced.
  void post_backward();
  /// Moves the gradient of parameter `index` of `group` out of the parameter into the group.
  void on_gradient(ParamGroup& group, size_t index, const at::Tensor& parameter);
  /// In a backward: where the gradient of `dtype` of `parameter`, number `index` of `group`, may be
  /// produced, if it is the only one that the parameter gets in this backward and nobody but
  /// on_gradient() will have it; else undefined.
  at::Tensor memory_for_gradient(ParamGroup& group, size_t index, const at::Tensor& parameter,
                                 at::ScalarType dtype);

  void start_unshard();
  void wait_for_unshard();
  /// Waits for what start_unshard() has issued; no-op when sharded.
  void finish_unshard();
  bool is_gather_in_flight() const;
  void reshard();
  /// See ParamGroup::prepare_to_write.
  void prepare_to_write();
  /// Of an optimizer: see ParamGroup::begin_update. The unit is sharded.
  void begin_update();
  void end_update();
  bool is_sharded() const;
  /// Of what is gathered from now on, and buffers of what runs: see
  /// MixedPrecisionPolicy::full_precision_in_eval. Reshards if that changes.
  void set_full_precision(bool is_full);
  /// Behind a forward without grad mode, to that of the graph that may be there: of the last
  /// forward with it. No-op within summon_full_params().
  void restore_precision();
  /// To their own dtypes, until the unit runs again.
  void restore_buffers() const;
  /// See GatherBuffer::takes_no_memory.
  bool takes_no_memory_to_unshard() const;
  /// See GatherBuffer::takes_no_memory_in_flight.
  bool takes_no_memory_in_flight() const;
  /// After a failed backward: leaves the parameters as a complete one would, so that this rank
  /// gathers the same units as the others in the next forward. Gradients stay.
  void abandon_backward();

  /// Attaches the unit to `context` as number `index`; 0 is the root.
  void set_context(std::shared_ptr<RunContext> context, int64_t index);

  /// Below the root: "layers.0", or "" of the root itself.
  void set_name(const std::string& name);
  const std::string& name() const { return name_; }

  UnitUses& uses() { return uses_; }

  /// At least one. TORCH_CHECK if they are gone.
  std::vector<std::shared_ptr<torch::nn::Module>> modules() const;
  /// The first of them.
  std::shared_ptr<torch::nn::Module> module() const;
  ModulesToRun& modules_to_run() { return forward_; }
  const std::vector<std::shared_ptr<ParamGroup>>& groups() const { return groups_; }
  const std::shared_ptr<DeviceMesh>& mesh() const { return options_.mesh; }
  /// This unit and those below it, in registration order. Looks for them only when modules have
  /// been sharded since the last call, since it is called in every step. TORCH_CHECK as module().
  std::vector<std::shared_ptr<ModuleState>> units();
  RunContext& context() const { return *context_; }
  int64_t index() const { return index_; }
  bool is_root() const { return index_ == 0; }
  Training training() const { return training_; }
  bool reshards_after_forward() const { return reshard_after_forward_.value_or(!is_root()); }
  /// Of which each keeps a part from forward to backward; 0: nothing is kept.
  int64_t part_ranks() const { return part_comm_ ? part_comm_->size() : 0; }
  /// Checked before. Collective, as part_group().
  void set_reshard_after_forward(const std::optional<ReshardAfterForward>& asked);

  bool requires_gradient_sync = true;
  bool requires_all_reduce = true;
  bool reshard_after_backward = true;
  bool unshard_in_backward = true;
  /// By summon_full_params(): the module's parameters are somebody's copies, not what is gathered.
  bool is_summoned = false;
  /// Prefetched instead of the predicted unit if not empty.
  std::vector<std::weak_ptr<ModuleState>> forward_prefetch;
  std::vector<std::weak_ptr<ModuleState>> backward_prefetch;

 private:
  /// Returns whether it is the first call of the unit's forward.
  bool begin_forward_of(const torch::nn::Module& called);
  void end_forward();
  void reshard_until_backward();
  /// Before `called` runs in a forward.
  void prepare_dtypes(const torch::nn::Module& called);
  /// Before the unit, or its backward, computes: an evaluation or a state dict may have cast them
  /// since, and what autograd has saved of them is the buffers themselves.
  void prepare_buffers() const;
  void reshard_after_gradients();
  void check_not_summoned() const;
  /// In a backward: see ParamGroup::check_not_used_up.
  void check_not_used_up() const;
  void cast(std::vector<at::Tensor*>& tensors, std::optional<at::ScalarType> dtype) const;
  // Autograd has a thread for each device. All hooks are to be called on that of the mesh's, or
  // they would run at the same time, and in an order that is not the same on all ranks.

  /// If an input on the mesh's device needs a gradient, autograd reports the end of this use.
  std::vector<detail::InputVersion> register_post_backward_hook(std::vector<at::Tensor*>& inputs);
  void check_unmodified(const std::vector<detail::InputVersion>& inputs) const;
  void register_pre_backward_hooks(std::vector<at::Tensor*>& outputs);
  /// Notifies the context, once per use, that this unit's backward has begun.
  void announce_backward();

  ModulesToRun forward_;
  bool is_open_forward_reported_ = false;
  const FullyShardOptions options_;
  const c10::Device device_;  // of the mesh
  std::optional<bool> reshard_after_forward_;
  std::shared_ptr<Collectives> part_comm_;  // of reshard_until_backward(); null: keeps nothing
  // The groups release their slots to the context in their destructors, so it must be destroyed
  // after them.
  std::shared_ptr<RunContext> context_;
  std::vector<std::shared_ptr<ParamGroup>> groups_;
  int64_t index_ = 0;
  Training training_ = Training::kIdle;
  bool is_backward_announced_ = false;
  bool is_use_reported_ = false;  // of the call that is running
  bool is_full_precision_ = false;
  bool is_graph_in_full_precision_ = false;
  std::optional<UnitBuffers> buffers_;  // if they are to be cast
  UnitUses uses_;
  std::string name_;
  UnitTrace trace_;
  std::vector<std::weak_ptr<ModuleState>> units_;  // of the registry's version below
  int64_t units_version_ = -1;
};

}  // namespace fsdp
