// What RunContext gathers ahead.

#include <algorithm>
#include <limits>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/run_context.h"

namespace fsdp {
namespace {

/// How many gathers are issued ahead of the unit that runs, while they take no memory: a rank that
/// is slow for a moment then holds up no other. Half of what the ranks of a host can have in flight
/// (GatherWindow::issue would wait for the others).
constexpr size_t kFreeGathersAhead = 8;
/// Of those that take memory and are predicted: FSDP1's.
constexpr int64_t kGathersAhead = 2;

}  // namespace

void RunContext::start_ahead(const std::shared_ptr<ModuleState>& unit, size_t limit) {
  if (!unit->is_sharded()) {
    return;
  }
  if (!unit->takes_no_memory_in_flight()) {
    std::erase_if(ahead_, [](const std::weak_ptr<ModuleState>& weak) {
      const std::shared_ptr<ModuleState> started = weak.lock();
      return !started || !started->is_gather_in_flight();
    });
    if (ahead_.size() >= limit) {
      return;
    }
    ahead_.push_back(unit);
  }
  unit->start_unshard();
}

void RunContext::prefetch(const plan::Upcoming& units, Pass pass) {
  const auto limit = static_cast<size_t>(prefetch_options_.limit.value_or(kGathersAhead));
  size_t gathers = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const std::shared_ptr<ModuleState> unit = units_[static_cast<size_t>(units[i])].lock();
    gathers += unit ? unit->groups().size() : 0;
    const bool is_free = unit && unit->takes_no_memory_in_flight() && gathers <= kFreeGathersAhead;
    if (!unit || (i > 0 && !is_free)) {
      return;
    }
    if (pass == Pass::kForward || unit->unshard_in_backward) {
      start_ahead(unit, limit);
    }
  }
}

void RunContext::prefetch_listed(const Units& listed, Pass pass) {
  const auto limit =
      static_cast<size_t>(prefetch_options_.limit.value_or(std::numeric_limits<int64_t>::max()));
  for (const std::weak_ptr<ModuleState>& weak : listed) {
    const std::shared_ptr<ModuleState> unit = weak.lock();
    if (unit && (pass == Pass::kForward || unit->unshard_in_backward)) {
      start_ahead(unit, limit);
    }
  }
}

void RunContext::begin_use(const ModuleState& unit) {
  std::erase_if(ahead_, [&unit](const std::weak_ptr<ModuleState>& weak) {
    return weak.lock().get() == &unit;
  });
}

void RunContext::on_unit_forward(const ModuleState& unit) {
  begin_use(unit);
  const plan::Upcoming next = order_.on_forward(unit.index());
  if (!unit.forward_prefetch.empty()) {
    prefetch_listed(unit.forward_prefetch, Pass::kForward);
  } else if (prefetch_options_.in_forward) {
    prefetch(next, Pass::kForward);
  }
}

void RunContext::on_unit_forward_end(const ModuleState& unit) {
  if (unit.is_root()) {
    end_open_forwards();
  }
  order_.on_forward_end(unit.index());
}

void RunContext::on_unit_backward(const ModuleState& unit) {
  begin_use(unit);
  const bool is_time = prefetch_options_.backward == BackwardPrefetch::kBackwardPre;
  const plan::Upcoming next = is_time ? order_.on_backward(unit.index()) : plan::Upcoming();
  if (!unit.backward_prefetch.empty()) {
    prefetch_listed(unit.backward_prefetch, Pass::kBackward);
  } else {
    prefetch(next, Pass::kBackward);
  }
}

void RunContext::on_unit_backward_end(const ModuleState& unit) {
  if (unit.backward_prefetch.empty() &&
      prefetch_options_.backward == BackwardPrefetch::kBackwardPost) {
    prefetch(order_.on_backward(unit.index()), Pass::kBackward);
  }
}

}  // namespace fsdp
