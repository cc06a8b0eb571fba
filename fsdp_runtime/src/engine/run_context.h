#pragma once

#include <fsdp/collectives.h>
#include <fsdp/counters.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <vector>

#include "fsdp_runtime/plan/execution_order.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class GradientReducer;
class ModuleState;
class ParamGroup;

/// State shared by all units under one root: the arenas, the execution order, the reductions in
/// flight and the state of the running backward. Owned by the units; refers to them weakly.
class RunContext : public std::enable_shared_from_this<RunContext> {
 public:
  /// `comm`: whose collectives read unsharded gradients.
  RunContext(std::shared_ptr<Collectives> comm, c10::Device device);
  ~RunContext();

  /// All units under the root in registration order, root first; a unit's index is its position.
  void set_units(const std::vector<std::shared_ptr<ModuleState>>& units);

  /// Null if it is gone.
  std::shared_ptr<ModuleState> root() const {
    return units_.empty() ? nullptr : units_.front().lock();
  }

  /// The root's forward begins.
  void begin_forward();
  /// `unit` begins its forward; prefetches what is predicted to follow.
  void on_unit_forward(const ModuleState& unit);
  void on_unit_forward_end(const ModuleState& unit);
  /// The root's forward ends; without grad mode nothing of it will follow.
  void end_forward(bool has_backward);
  /// `unit` begins its backward; prefetches units whose forward ended before its own.
  void on_unit_backward(const ModuleState& unit);
  /// Called by every unit whose backward begins: the first one queues finalize_backward(), after
  /// cleaning up an earlier failed backward.
  void enter_backward();
  /// A backward that queued finalize_backward() is running on this thread, so a forward now is an
  /// activation recomputation.
  bool in_backward() const;
  /// Cleans up after a backward that threw and therefore never ran finalize_backward(): parameters
  /// are resharded; gradients stay.
  void reset_failed_backward();
  /// Outside a backward, cleans up after one that threw: else its reductions would still arrive in
  /// gradients that somebody is about to read, scale or drop.
  void settle_gradients();
  /// Reshards all units.
  void reshard_all();
  /// Counts forwards of the root; tells uses of a unit in one forward from uses in another.
  int64_t forward_id() const { return forward_id_; }
  /// Another one whenever shards may have been written without prepare_to_write(): at the end of a
  /// backward, or of a forward of the root without grad mode, and when a forward of it begins.
  int64_t write_epoch() const { return write_epoch_; }

  SlotLease acquire_parameter_slot(int64_t bytes) { return parameter_slots_.acquire(bytes); }
  /// A slot for unsharded gradients. If plan::kGradientSlotsPerSize of this size are in use, waits
  /// until a reduction does not need its own any more instead of growing the arena.
  SlotLease acquire_gradient_slot(int64_t bytes);
  /// A slot for what a reduce-scatter gives. If plan::kReducedSlotsPerSize are in use, waits for
  /// the oldest reduction.
  SlotLease acquire_reduced_slot(int64_t bytes);

  void add_reduction(GradientReducer* reducer) { reducing_.push_back(reducer); }
  /// Waits for the reductions up to and including that of `reducer`; no-op if it has none.
  void finish_reductions_through(const GradientReducer& reducer);
  void finish_all_reductions();
  /// `group` takes part in the exchange of uses at the end of this backward.
  void add_reduced(ParamGroup* group);
  /// `group` is being destroyed.
  void forget(ParamGroup* group);

  RuntimeCounters counters() const;
  RuntimeCounters& counters_in_place() { return counters_; }

 private:
  struct BackwardMark {};

  void finalize_backward();
  /// To those who have asked for leaves.
  void show_gradients();
  void finish_oldest_reduction();
  /// Returns false if no reduction has its input.
  bool release_oldest_input();
  void wait_for_marks();
  /// The next unit, and those behind it whose parameters take no memory unsharded. The same on all
  /// ranks.
  void prefetch(const plan::Upcoming& units);

  SlotArena parameter_slots_;
  SlotArena gradient_slots_;
  SlotArena reduced_slots_;
  plan::ExecutionOrder order_;
  std::vector<std::weak_ptr<ModuleState>> units_;
  std::deque<GradientReducer*> reducing_;
  std::vector<std::shared_ptr<Collectives>> comms_;  // that gather the units, each once
  std::vector<WorkPtr> marks_;                       // of the last forward's end
  std::vector<ParamGroup*> reduced_;  // since the last exchange, each once, in this order
  std::exception_ptr hook_error_;     // the first of this backward, which throws it at its end
  RuntimeCounters counters_;
  int64_t forward_id_ = 0;
  int64_t write_epoch_ = 0;
  bool backward_queued_ = false;
  // Owned by the queued callback, so it expires with its backward even if that throws.
  std::weak_ptr<BackwardMark> backward_mark_;
};

}  // namespace fsdp
