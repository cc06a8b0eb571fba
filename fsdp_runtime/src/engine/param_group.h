#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/gather_buffer.h"
#include "fsdp_runtime/src/engine/gradient_buffer.h"
#include "fsdp_runtime/src/engine/gradient_reducer.h"
#include "fsdp_runtime/src/engine/parameter_seal.h"
#include "fsdp_runtime/src/engine/parameter_uses.h"
#include "fsdp_runtime/src/engine/shard_store.h"
#include "fsdp_runtime/src/engine/sharded_leaves.h"

namespace fsdp {

class GradientUser;
class RunContext;

struct GroupOptions {
  std::shared_ptr<Collectives> comm;          // of the ranks that divide the parameters
  std::shared_ptr<Collectives> replicas;      // of those that hold copies of the shard; may be null
  std::vector<std::string> mesh_axes;         // along which the ranks of `comm` lie
  std::optional<at::ScalarType> param_dtype;  // unset: the parameters' own
  std::optional<at::ScalarType> reduce_dtype;  // unset: param_dtype
  OffloadPolicy offload_policy;
};

/// In which the gradients of a group of `params`, all of one dtype, are reduced.
at::ScalarType reduce_dtype(const std::vector<NamedParameter>& params, const GroupOptions& options);

/// Parameters that are all-gathered and reduce-scattered together (FSDP2's FSDPParamGroup): one
/// shard per rank, of one flat range or of a chunk of each. With hybrid sharding (HSDP) several
/// sets of ranks divide the parameters in the same way, and the reduction sums over both.
///
///     ShardStore ----all-gather----> GatherBuffer ----> forward and backward
///         ^                                                    |
///     optimizer <--- GradientReducer <----------------- GradientBuffer
///
/// The parts pass each other tensors; this class owns them, and lends them the slots of the
/// context.
///
/// Thread: the rank's. Ownership: the unit; holds the parameters weakly, because their gradient
/// hooks refer to it.
class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  /// `params`: as for ShardStore. They stay what they are, until retarget().
  ParamGroup(const std::vector<NamedParameter>& params, const GroupOptions& options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// The module's own parameter tensors, `params` as before, become views of the gather buffer;
  /// what they held is freed but for this rank's shard. To be called once, ahead of everything
  /// else.
  void retarget(const std::vector<NamedParameter>& params);
  /// TORCH_CHECK if gathered, wholly or in part, or with gradients in slots.
  void check_unused() const;
  /// Only while unused.
  void set_context(std::shared_ptr<RunContext> context);
  /// Null until its unit has been sharded.
  const std::shared_ptr<RunContext>& context() const { return context_; }

  // Parameters.
  void start_unshard();     // issues the all-gather; no-op unless sharded
  void wait_for_unshard();  // the parameters can be used afterwards
  void reshard();
  /// See GatherBuffer::reshard_to_part.
  void reshard_to_part(const std::shared_ptr<Collectives>& part_comm);
  bool is_sharded() const { return unsharded().is_sharded(); }
  /// true: from now on the parameters are gathered in their own dtype, not in that in which they
  /// compute otherwise. Reshards, if that is another one.
  void set_full_precision(bool is_full);
  void set_custom_all_gather(const std::shared_ptr<AllGather>& custom);
  /// To be called before the shard is written: what is unsharded would be stale, and peers may
  /// still read it. See ShardStore::prepare_to_write.
  void prepare_to_write();
  /// See ShardStore::begin_update; the parameters are sharded.
  void begin_update();
  void end_update();

  // Gradients: begin_gradients(), accumulate_gradient() for each, end_gradients() or
  // start_reduction().
  bool is_trainable() const;
  /// In a backward: whether it accumulates gradients of the group; not if it was restricted to
  /// other inputs, as by torch::autograd::grad(). The same on all ranks.
  bool is_accumulated() const;
  /// No-op while gradients are collected, but for release_empty_gradients().
  void begin_gradients();
  /// Until the next begin_gradients() or start_reduction(), if nothing has been accumulated yet.
  void release_empty_gradients() { gradients_.release_if_empty(); }
  void accumulate_gradient(size_t index, const at::Tensor& gradient) {
    gradients_.accumulate(*context_, index, gradient);
  }
  /// See GradientBuffer::lend.
  at::Tensor lend_gradient(size_t index, at::ScalarType dtype) {
    return gradients_.lend(index, dtype);
  }
  /// The unit's part of a backward ends.
  void end_gradients() { gradients_.write(*context_); }
  /// Of the whole group, with zeros for missing gradients. The context finishes it.
  /// `all_reduces`: see FSDPModule::set_requires_all_reduce.
  void start_reduction(bool all_reduces);
  bool collects_gradients() const { return gradients_.is_collecting(); }
  /// Of gradients that wait for a reduction, or are in one.
  int64_t unreduced_bytes() const { return gradients_.bytes_in_use() + reducer_.input_bytes(); }
  /// Whether a sum of the row waits for start_reduction(true), which needs begin_gradients() but no
  /// gradient.
  bool has_row_sum() const { return reducer_.has_row_sum(); }
  /// To be called before gradient() is read: ends what may still write it, after a backward that
  /// threw or in one that goes on. Throws like Work::wait(), and on a device also if the group has
  /// failed by now.
  void settle_gradient();
  /// Blocks the host until a device has ended its copies from and to offloaded memory. Throws like
  /// Work::wait(). No-op without such memory.
  void settle_offload();
  /// See RunContext::settle_gradients.
  void settle_backward();
  /// Drops the shard's gradient and what has been collected for the next reduction.
  void drop_gradient();
  /// The same of some parameters, behind settle_backward(); of all, once no other one has a
  /// gradient. Waits until the gradient has arrived; throws like Work::wait().
  void drop_gradients(const std::vector<size_t>& indices);
  void set_gradient_divide_factor(std::optional<double> factor) {
    reducer_.set_divide_factor(factor);
  }

  /// Like store().shard(); undefined until a reduction has finished. Zeros for parameters without
  /// gradient.
  at::Tensor gradient() const { return reducer_.gradient(); }
  /// Whether some rank has used the parameter since its gradient was dropped, which is when `.grad`
  /// is not None in PyTorch.
  bool has_gradient(size_t index) const {
    return reducer_.gradient().defined() && uses_.is_used(index) &&
           !(leaves_ && leaves_->is_dropped(index));
  }
  /// See ShardedLeaves.
  const std::vector<at::Tensor>& leaves();
  /// To be called at the end of a backward.
  void show_gradients();
  /// From the next backward on, `user` is called with the gradient, in which the group then has
  /// memory only until all parameters' gradients have been dropped. Not in a backward.
  void add_gradient_user(std::shared_ptr<GradientUser> user);
  void remove_gradient_user(const std::shared_ptr<GradientUser>& user);
  bool has_gradient_users() const { return !users_.empty(); }
  /// Waits for the reduction, and calls the users of the gradient. Collective, in a backward.
  void use_gradient();
  /// TORCH_CHECK if the running backward has done that.
  void check_not_used_up() const;
  /// Gathers the parameter into new memory, in its own shape and dtype, and all of the group for a
  /// moment. Collective.
  at::Tensor gathered_copy(size_t index) const;

  ShardStore& store() { return store_; }
  const ShardStore& store() const { return store_; }
  const GatherBuffer& unsharded() const { return is_full_ ? *full_ : unsharded_; }
  GradientReducer& reducer() { return reducer_; }
  ParameterUses& uses() { return uses_; }
  const std::shared_ptr<Collectives>& comm() const { return comm_; }
  /// Null if no other rank holds the same shard.
  const std::shared_ptr<Collectives>& replicas() const { return replicas_; }

  size_t size() const { return store_.size(); }
  /// Identity of the module's tensor; valid as a key only while the tensor is alive.
  const c10::TensorImpl* key(size_t index) const { return params_[index].key; }
  /// Of a parameter, below the root.
  void set_fqn(size_t index, const std::string& fqn);
  /// Of its unit, below the root: "layers.0", or "" of the root itself.
  void set_unit_name(const std::string& name);

 private:
  /// A tensor of the module.
  struct Param {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const c10::TensorImpl* key = nullptr;
    ParameterSeal seal;
  };

  /// The output of an all-gather in the parameters' own dtype, [layout.numel()].
  at::Tensor all_gather_copy() const;
  void close_seals();
  /// Whether a parameter has a gradient, or a sum that will become one.
  bool is_gradient_needed() const;
  GatherBuffer& in_use() { return is_full_ ? *full_ : unsharded_; }

  const std::shared_ptr<Collectives> comm_;
  const std::shared_ptr<Collectives> replicas_;
  std::string purpose_;  // of its collectives
  std::vector<Param> params_;
  bool are_open_ = false;  // the parameters' seals
  // The parts give their slots back to it in their destructors.
  std::shared_ptr<RunContext> context_;
  ShardStore store_;
  GatherBuffer unsharded_;
  std::unique_ptr<GatherBuffer> full_;  // in the own dtype; null if that has not been needed
  bool is_full_ = false;
  std::shared_ptr<AllGather> custom_all_gather_;
  GradientBuffer gradients_;
  GradientReducer reducer_;
  ParameterUses uses_;
  std::optional<ShardedLeaves> leaves_;  // once somebody has asked for them
  std::vector<std::shared_ptr<GradientUser>> users_;
  int64_t used_in_ = -1;  // the backward in which they have been called last
};

}  // namespace fsdp
