#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

#include "fsdp_runtime/src/engine/retargetable_storage.h"
#include "fsdp_runtime/src/engine/shard_store.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class RunContext;

/// The gradients of one whole group on this rank, as a reduce-scatter reads them: the parts of all
/// ranks one behind the other. With the memory that they are in.
struct UnshardedGradients {
  at::Tensor flat;  // [layout.numel()]
  SlotLease slot;   // null if the memory is the shard's gradient
};

/// The unsharded gradients of one group while autograd delivers them, in the reduction dtype. The
/// sum over the backwards since begin(): each parameter's first gradient is copied, unless it has
/// been produced there, and later ones are added, where the reduce-scatter will read them. Where
/// parameters are copied out of what is gathered, gradients are copied and added there piece by
/// piece, to where FSDP2's chunk_cat puts them.
///
///     idle --begin()--> collecting --take() or drop()--> idle
///
/// Where a kernel for each parameter costs more than its work (Delivery::kInBatches), gradients
/// stay where autograd has put them until write(), which moves all of them at once (pieces, which
/// are strided, with a kernel each all the same), and the memory is not needed before.
///
/// Thread: the rank's and autograd's, one at a time. Streams: the current one.
class GradientBuffer {
 public:
  enum class Delivery { kAtOnce, kInBatches };

  /// For gradients of the parameters of `store`, which must outlive this.
  GradientBuffer(const ShardStore& store, at::ScalarType dtype, Delivery delivery);

  /// Only while idle. The gradients are collected in a slot; if there is none to be had, it throws
  /// and stays idle.
  void begin(RunContext& context);
  /// Only while idle. The gradients are collected in `gradient`, [layout.numel()], which has the
  /// sum of earlier backwards if `holds_sum`.
  void begin_in(const at::Tensor& gradient, bool holds_sum);
  /// Gets the slot, unless it is there or not needed.
  void hold_memory(RunContext& context);
  /// Gets it if accumulate() writes to it.
  void prepare(RunContext& context);
  /// Gives the slot back, until one of these, if nothing has been accumulated yet.
  void release_if_empty();
  /// Memory in which the first gradient of parameter `index` may be produced, in its shape and with
  /// any content, to be given to accumulate(), unless autograd adds it to others first. Undefined
  /// if there is a sum, if it is not in one piece there, if `dtype` is not that of the reduction,
  /// and as long as somebody has what was lent before. Whoever still has it when the memory is
  /// written or given away has a copy of its own from then on: autograd while it waits for other
  /// gradients, or a hook.
  at::Tensor lend(size_t index, at::ScalarType dtype);
  /// Adds `gradient`, of any dtype, to that of parameter `index`, whose shape it has. It must not
  /// be modified afterwards.
  void accumulate(RunContext& context, size_t index, const at::Tensor& gradient);
  /// All that has been accumulated is in the memory afterwards, which it gets if need be.
  void write(RunContext& context);
  /// Ends the sum, behind write(), with zeros for parameters without gradient and between them.
  UnshardedGradients take();
  /// Forgets the sum. No-op while idle.
  void drop();
  /// The same of one parameter.
  void drop(size_t index);

  bool is_collecting() const { return is_collecting_; }
  /// Of its own, for what is collected now.
  int64_t bytes_in_use() const { return slot_ ? slot_->bytes : 0; }
  /// For the message of an access to a gradient that is not there.
  void set_fqn(size_t index, const std::string& fqn);
  /// Whether the parameter has been given a gradient since begin().
  bool is_added_to(size_t index) const { return params_[index].is_added_to; }

 private:
  struct Param {
    at::Tensor gradient;             // view of storage_; undefined if it is not in one piece
    std::vector<at::Tensor> pieces;  // of storage_ then, as pieces_in() gives them
    bool has_sum = false;            // of gradients, in the views
    bool is_added_to = false;        // since begin()
    bool is_lent = false;            // since the last end_loan()
    c10::weak_intrusive_ptr<c10::TensorImpl> loan = no_loan();  // expired if nobody has it
    at::Tensor waits;  // gradient that write() will move; undefined if there is none
  };

  static c10::weak_intrusive_ptr<c10::TensorImpl> no_loan();
  void add_views(size_t index);
  /// Adds where the parameter's gradient is, in one piece or several.
  static void add_pieces(const Param& param, std::vector<at::Tensor>& to);
  /// Adds `gradient`, in as many.
  void add_pieces_of(size_t index, const at::Tensor& gradient, std::vector<at::Tensor>& to) const;
  void accumulate_pieces(size_t index, const at::Tensor& gradient);
  static void end_loan(Param& param);
  void end_loans();
  void start_collecting(bool holds_sum);
  /// Padding too: it is part of the reduction and of the norm of the shard's gradient.
  void zero_missing(const at::Tensor& flat);
  void stop_collecting();

  const ShardStore& store_;
  const at::ScalarType dtype_;
  const Delivery delivery_;
  std::vector<plan::Range> padding_;  // unless it is zeroed in a batch
  RetargetableStorage storage_;
  std::vector<Param> params_;
  // Of the padding, if that is zeroed in a batch.
  std::vector<at::Tensor> gaps_;  // views
  at::Tensor listed_gaps_;  // further elements of what is reduced; undefined if there are none
  bool is_collecting_ = false;
  at::Tensor in_place_;  // defined while collecting in memory that is not a slot
  SlotLease slot_;
};

}  // namespace fsdp
