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

/// A parameter on its way into a group.
struct NamedParameter {
  std::string fqn;
  at::Tensor tensor;
};

struct GroupOptions {
  std::shared_ptr<Collectives> comm;
  std::optional<at::ScalarType> param_dtype;   // unset: the parameters' own
  std::optional<at::ScalarType> reduce_dtype;  // unset: param_dtype
};

/// How a sum over ranks becomes an average, or a sum over something else: divisors before and after
/// the reduction.
struct GradientDivision {
  ReduceOp op = ReduceOp::kAvg;
  double before = 1;
  double after = 1;
};

/// `factor`: what the sum is to be divided by; unset: by `ranks`. float16, whose sums overflow
/// early, is divided by about the factor's square root, a power of two, before and by the rest
/// afterwards, as FSDP2 does. Pure.
FSDP_API GradientDivision divide_gradients(std::optional<double> factor, int64_t ranks,
                                           at::ScalarType reduce_dtype);

/// Parameters that are gathered and reduced together: one flat range, one shard per rank.
///
/// The module's own parameter tensors become views of one retargetable storage. Unsharded, it
/// points to an arena slot into which the shards were gathered; sharded, to poison. Gradients are
/// collected in a second storage of the same layout in the reduction dtype, which is the input of
/// the reduce-scatter. The shard in the parameters' own dtype is separate, permanent memory.
///
/// Thread: the rank's. Ownership: the unit; holds the parameters weakly, as they hold it (through
/// their gradient hook).
class ParamGroup {
 public:
  /// All of one dtype, contiguous, at least one-dimensional. Keeps this rank's pieces and frees
  /// everything else.
  ParamGroup(const std::vector<NamedParameter>& params, const GroupOptions& options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  /// TORCH_CHECK if gathered or with gradients in slots.
  void check_unused() const;
  /// Only while unused.
  void set_context(std::shared_ptr<RunContext> context);

  // Parameters.
  void start_unshard();   // issues the gather; no-op unless sharded
  void finish_unshard();  // the parameters can be used afterwards
  void reshard();         // no-op when sharded
  bool is_sharded() const { return gather_ == Gather::kSharded; }

  // Gradients. begin_ and reduce_ bracket a backward; in between accumulate_ adds to the slot.
  bool is_trainable() const;
  void begin_gradients();
  void accumulate_gradient(size_t index, const at::Tensor& gradient);
  void start_reduction();   // whole group, zeros where no gradient came
  void finish_reduction();  // adds to what the shard's gradient holds already
  bool collects_gradients() const { return collects_gradients_; }
  bool is_reducing() const { return reduction_ != nullptr; }
  void drop_gradient();
  /// Forgets unreduced gradients.
  void abandon_gradients();
  /// Holds from the next begin_gradients() on.
  void set_gradient_divide_factor(std::optional<double> factor) { divide_factor_ = factor; }

  /// [shard_numel] in the parameters' own dtype.
  const at::Tensor& shard() const { return shard_; }
  /// Like shard(); undefined until a reduction has finished.
  at::Tensor gradient() const;
  /// The whole group gathered into new memory, in the parameters' own dtype. Collective.
  at::Tensor gather_copy() const;

  size_t size() const { return params_.size(); }
  const std::string& fqn(size_t index) const { return params_[index].fqn; }
  void set_fqn(size_t index, std::string fqn) { params_[index].fqn = std::move(fqn); }
  const std::vector<int64_t>& shape(size_t index) const { return params_[index].shape; }
  const plan::ParamSlice& slice(size_t index) const { return slices_[index]; }
  const plan::GroupLayout& layout() const { return layout_; }
  /// Identity of the module's tensor; valid as a key only while that lives.
  const c10::TensorImpl* key(size_t index) const { return params_[index].key; }
  at::ScalarType dtype() const { return dtype_; }
  Collectives& comm() const { return *comm_; }

 private:
  enum class Gather { kSharded, kInFlight, kUnsharded };

  struct Param {
    std::string fqn;
    std::vector<int64_t> shape;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    const c10::TensorImpl* key = nullptr;
    at::Tensor gradient;             // view of gradient_storage_
    bool received_gradient = false;  // since begin_gradients()
  };

  void keep_pieces(const std::vector<NamedParameter>& params);
  void retarget_parameters(const std::vector<NamedParameter>& params);
  void make_gradient_views();
  void zero_what_received_nothing();
  bool casts_parameters() const { return compute_dtype_ != dtype_; }
  /// One rank without casts: the shard is the parameters and its gradient the reduction's input.
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

  std::shared_ptr<RunContext> context_;

  at::Tensor shard_;
  RetargetableStorage storage_;
  at::Tensor gathered_;  // the whole storage, flat
  at::Tensor own_part_;  // this rank's range of it
  Gather gather_ = Gather::kSharded;
  WorkPtr gather_work_;
  Slot* slot_ = nullptr;

  RetargetableStorage gradient_storage_;
  at::Tensor gathered_gradient_;  // the whole storage, flat
  Slot* gradient_slot_ = nullptr;
  bool collects_gradients_ = false;
  bool collects_in_place_ = false;  // in gradient_, fixed by begin_gradients() like the division
  GradientDivision division_;
  WorkPtr reduction_;
  Slot* reduced_slot_ = nullptr;  // output of the reduction when it can't go to gradient_ itself
  at::Tensor reduced_;
  at::Tensor gradient_;  // allocated once, kept
  bool has_gradient_ = false;
  std::optional<double> divide_factor_;
};

}  // namespace fsdp
