#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <fsdp/collectives.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/group_layout.h"
#include "fsdp_runtime/src/engine/retargetable_storage.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class RunContext;

/// A parameter to be added to a group.
struct NamedParameter {
  std::string fqn;
  at::Tensor tensor;
};

struct GroupOptions {
  std::shared_ptr<Collectives> comm;
  std::optional<at::ScalarType> param_dtype;   // unset: the parameters' own
  std::optional<at::ScalarType> reduce_dtype;  // unset: param_dtype
};

/// How gradients are averaged: reduction op, and divisors before and after the reduction.
struct GradientDivision {
  ReduceOp op = ReduceOp::kAvg;
  double before = 1;
  double after = 1;
};

/// `factor`: divisor of the sum; unset: `ranks`. float16, whose sums overflow easily, is divided by
/// a power of two near the factor's square root before the reduction and by the rest afterwards, as
/// FSDP2 does. Pure.
FSDP_API GradientDivision divide_gradients(std::optional<double> factor, int64_t ranks,
                                           at::ScalarType reduce_dtype);

/// Parameters that are all-gathered and reduce-scattered together (FSDP2's FSDPParamGroup): one
/// flat range, one shard per rank.
///
/// The module's own parameter tensors become views of one retargetable storage. Unsharded, it
/// points to an arena slot that holds the output of the all-gather; sharded, to poison. Gradients
/// are accumulated in a second storage of the same layout in the reduction dtype, which is the
/// input of the reduce-scatter. The shard in the parameters' own dtype is separate, permanent
/// memory.
///
/// Thread: the rank's. Ownership: the unit; holds the parameters weakly, because their gradient
/// hooks refer to it.
class ParamGroup {
 public:
  /// `params`: all of one dtype, contiguous, at least one-dimensional. Keeps this rank's slices and
  /// frees everything else.
  ParamGroup(const std::vector<NamedParameter>& params, const GroupOptions& options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// TORCH_CHECK if gathered or with gradients in slots.
  void check_unused() const;
  /// Only while unused.
  void set_context(std::shared_ptr<RunContext> context);

  // Parameters.
  void start_unshard();     // issues the all-gather; no-op unless sharded
  void wait_for_unshard();  // the parameters can be used afterwards
  void reshard();           // no-op when sharded
  bool is_sharded() const { return gather_ == Gather::kSharded; }

  // Gradients: begin_gradients(), accumulate_gradient() for each, start_reduction(),
  // finish_reduction().
  bool is_trainable() const;
  void begin_gradients();
  /// Until the next begin_gradients() or start_reduction(), if nothing has been accumulated yet.
  void release_empty_gradients();
  void accumulate_gradient(size_t index, const at::Tensor& gradient);
  void start_reduction();   // whole group, zeros for missing gradients
  void finish_reduction();  // adds to the shard's gradient if there is one
  bool collects_gradients() const { return collects_gradients_; }
  bool is_reducing() const { return reduction_ != nullptr; }
  /// Drops the shard's gradient and what has been collected for the next reduction.
  void drop_gradient();
  /// By parameter, 1 if this rank has contributed a gradient, not only zeros, to a reduction since
  /// the last add_uses().
  const std::vector<uint8_t>& own_uses() const { return own_uses_; }
  /// By parameter, 1 if some rank has; ends a round of own_uses().
  void add_uses(const uint8_t* uses_of_all_ranks);
  /// Takes effect at the next begin_gradients().
  void set_gradient_divide_factor(std::optional<double> factor) { divide_factor_ = factor; }

  /// [shard_numel] in the parameters' own dtype.
  const at::Tensor& shard() const { return shard_; }
  /// Like shard(); undefined until a reduction has finished. Zeros for parameters without gradient.
  at::Tensor gradient() const;
  /// Whether some rank has used the parameter since drop_gradient(), which is when `.grad` is not
  /// None in PyTorch.
  bool has_gradient(size_t index) const { return has_gradient_ && is_used_[index] != 0; }
  /// All-gathers the whole group into new memory, in the parameters' own dtype. Collective.
  at::Tensor all_gather_copy() const;

  /// Of its unit, below the root: "layers.0", or "" of the root itself.
  void set_unit_name(std::string name) { unit_name_ = std::move(name); }

  size_t size() const { return params_.size(); }
  const std::string& fqn(size_t index) const { return params_[index].fqn; }
  void set_fqn(size_t index, std::string fqn) { params_[index].fqn = std::move(fqn); }
  const std::vector<int64_t>& shape(size_t index) const { return params_[index].shape; }
  const plan::ParamSlice& slice(size_t index) const { return slices_[index]; }
  const plan::GroupLayout& layout() const { return layout_; }
  /// Identity of the module's tensor; valid as a key only while the tensor is alive.
  const c10::TensorImpl* key(size_t index) const { return params_[index].key; }
  at::ScalarType dtype() const { return dtype_; }
  Collectives& comm() const { return *comm_; }
  const std::shared_ptr<Collectives>& shared_comm() const { return comm_; }

 private:
  enum class Gather { kSharded, kInFlight, kUnsharded };

  struct Param {
    std::string fqn;
    std::vector<int64_t> shape;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const c10::TensorImpl* key = nullptr;
    at::Tensor gradient;       // view of gradient_storage_
    bool has_sum = false;      // of gradients, in the view
    bool is_added_to = false;  // since begin_gradients()
  };

  void copy_local_slices(const std::vector<NamedParameter>& params);
  void retarget_parameters(const std::vector<NamedParameter>& params);
  void make_gradient_views();
  void hold_gradient_slot();  // no-op if it does
  void zero_missing_gradients();
  std::string purpose() const;
  bool casts_parameters() const { return compute_dtype_ != dtype_; }
  /// One rank without casts: the shard is the full parameters, without an all-gather.
  bool is_local() const;
  bool reduces_locally() const;

  // Constant after construction.
  const std::shared_ptr<Collectives> comm_;
  const at::ScalarType dtype_;
  const at::ScalarType compute_dtype_;
  const at::ScalarType reduce_dtype_;
  const c10::Device device_;
  plan::GroupLayout layout_;
  std::vector<plan::ParamSlice> slices_;
  std::vector<plan::Range> padding_;
  std::vector<Param> params_;
  std::string unit_name_;

  std::shared_ptr<RunContext> context_;

  at::Tensor shard_;
  RetargetableStorage storage_;
  at::Tensor gathered_;   // the whole storage, flat
  at::Tensor own_slice_;  // this rank's range of gathered_
  Gather gather_ = Gather::kSharded;
  WorkPtr gather_work_;
  Slot* slot_ = nullptr;

  RetargetableStorage gradient_storage_;
  at::Tensor gathered_gradient_;  // the whole storage, flat
  Slot* gradient_slot_ = nullptr;
  bool collects_gradients_ = false;
  bool collects_in_place_ = false;  // in gradient_; set by begin_gradients(), as is division_
  GradientDivision division_;
  WorkPtr reduction_;
  Slot* reduced_slot_ = nullptr;  // output of the reduction if it cannot be gradient_ itself
  at::Tensor reduced_;
  at::Tensor gradient_;  // allocated once, kept
  bool has_gradient_ = false;
  std::vector<uint8_t> own_uses_;
  std::vector<uint8_t> is_used_;
  std::optional<double> divide_factor_;
};

}  // namespace fsdp
