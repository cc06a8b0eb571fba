#pragma once

#include <fsdp/collectives.h>
#include <fsdp/counters.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "fsdp_runtime/plan/execution_order.h"
#include "fsdp_runtime/src/engine/slot_arena.h"

namespace fsdp {

class ModuleState;
class ParamGroup;

/// State shared by all units under one root: the arenas, the execution order, the reductions in
/// flight and the state of the running backward. Owned by the units; refers to them weakly.
class RunContext : public std::enable_shared_from_this<RunContext> {
 public:
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
  /// `unit` begins its forward; prefetches the predicted next unit.
  void on_unit_forward(const ModuleState& unit);
  void on_unit_forward_end(const ModuleState& unit);
  /// The root's forward ends; without grad mode nothing of it will follow.
  void end_forward(bool has_backward);
  /// `unit` begins its backward; prefetches the unit whose forward ended before its own.
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
  /// Reshards all units.
  void reshard_all();
  /// Counts forwards of the root; tells uses of a unit in one forward from uses in another.
  int64_t forward_id() const { return forward_id_; }

  Slot* acquire_parameter_slot(int64_t bytes) { return parameter_slots_.acquire(bytes); }
  void release_parameter_slot(Slot* slot) { parameter_slots_.release(slot); }
  /// A slot for gradients. If plan::kGradientSlotsPerSize slots of this size are in use, waits for
  /// the oldest reduction instead of growing the arena.
  Slot* acquire_gradient_slot(int64_t bytes);
  void release_gradient_slot(Slot* slot) { gradient_slots_.release(slot); }

  void add_reduction(ParamGroup* group) { reducing_.push_back(group); }
  /// Waits for the reductions up to and including `group`'s.
  void finish_reductions_through(const ParamGroup* group);
  void finish_all_reductions();
  /// `group` takes part in the exchange of uses at the end of this backward.
  void add_reduced(ParamGroup* group);
  /// `group` is being destroyed.
  void remove_reduction(const ParamGroup* group);

  RuntimeCounters counters() const;
  RuntimeCounters& counters_in_place() { return counters_; }

 private:
  struct BackwardMark {};

  void finalize_backward();
  void finish_oldest_reduction();
  void wait_for_marks();
  struct Exchange;
  /// Asks the other ranks whether they have used the same parameters of the groups that have been
  /// reduced; one question for each communicator.
  std::vector<Exchange> start_exchange_of_uses();
  /// Tells the groups which parameters some rank has used.
  static void finish_exchange_of_uses(std::vector<Exchange> exchanges);
  void prefetch(int64_t unit_index);

  SlotArena parameter_slots_;
  SlotArena gradient_slots_;
  plan::ExecutionOrder order_;
  std::vector<std::weak_ptr<ModuleState>> units_;
  std::deque<ParamGroup*> reducing_;
  std::vector<std::shared_ptr<Collectives>> comms_;  // of the units, each once
  std::vector<WorkPtr> marks_;                       // of the last forward's end
  std::vector<ParamGroup*> reduced_;  // since the last exchange, each once, in this order
  RuntimeCounters counters_;
  int64_t forward_id_ = 0;
  bool backward_queued_ = false;
  // Owned by the queued callback, so it expires with its backward even if that throws.
  std::weak_ptr<BackwardMark> backward_mark_;
};

}  // namespace fsdp
