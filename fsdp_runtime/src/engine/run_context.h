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

/// What all units under one root share: the arenas, the execution order, the reductions in flight
/// and the bounds of the running backward. Shared by the units; refers to them weakly.
class RunContext : public std::enable_shared_from_this<RunContext> {
 public:
  RunContext(std::shared_ptr<Collectives> comm, c10::Device device);

  /// All units under the root in registration order, root first; names each by its position.
  void set_units(const std::vector<std::shared_ptr<ModuleState>>& units);

  /// The root's forward begins.
  void begin_forward();
  /// `unit` begins its forward; gathers the predicted next unit ahead.
  void on_unit_forward(const ModuleState& unit);
  /// `unit` begins its backward; gathers the unit before it ahead.
  void on_unit_backward(const ModuleState& unit);
  /// Called by every unit whose backward begins: the first one queues finish_backward(), after
  /// cleaning up behind an earlier backward that failed.
  void enter_backward();
  /// A backward that queued finish_backward() is running on this thread, so a forward is a
  /// recomputation.
  bool in_backward() const;
  /// Cleans up after a backward that ended in an exception and so never reached finish_backward().
  void forget_failed_backward();
  /// Frees all gathered parameters.
  void reshard_all();
  /// Counts forwards of the root; tells uses of a unit in one forward from uses in another.
  int64_t forward_id() const { return forward_id_; }

  Slot* take_parameter_slot(int64_t bytes) { return parameter_slots_.take(bytes); }
  void give_back_parameter_slot(Slot* slot) { parameter_slots_.give_back(slot); }
  /// A slot for gradients. With plan::kGradientSlotsPerSize of this size in use, waits for the
  /// oldest reduction that reads one of them before the arena grows.
  Slot* take_gradient_slot(int64_t bytes);
  void give_back_gradient_slot(Slot* slot) { gradient_slots_.give_back(slot); }

  void add_reduction(ParamGroup* group) { reducing_.push_back(group); }
  /// Waits for the reductions up to and including `group`'s.
  void finish_reductions_through(const ParamGroup* group);
  void finish_all_reductions();
  /// `group` is going away.
  void forget_reduction(const ParamGroup* group);

  RuntimeCounters counters() const;
  RuntimeCounters& counters_in_place() { return counters_; }

 private:
  struct BackwardMark {};

  void finish_backward();
  void finish_oldest_reduction();
  void prefetch(int64_t unit_index);

  SlotArena parameter_slots_;
  SlotArena gradient_slots_;
  plan::ExecutionOrder order_;
  std::vector<std::weak_ptr<ModuleState>> units_;
  std::deque<ParamGroup*> reducing_;
  RuntimeCounters counters_;
  int64_t forward_id_ = 0;
  bool backward_queued_ = false;
  // Lives in the queued callback, and so ends with its backward however that ends.
  std::weak_ptr<BackwardMark> backward_mark_;
};

}  // namespace fsdp
