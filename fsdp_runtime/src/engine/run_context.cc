#include "fsdp_runtime/src/engine/run_context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp_runtime/plan/memory_plan.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/uses_exchange.h"

namespace fsdp {
namespace {

/// How many gathers are issued ahead of the unit that runs, while they take no memory: a rank that
/// is slow for a moment then holds up no other. Half of what the ranks of a host can have in flight
/// (GatherWindow::issue would wait for the others).
constexpr size_t kFreeGathersAhead = 8;

}  // namespace

RunContext::RunContext(std::shared_ptr<Collectives> comm, c10::Device device)
    : parameter_slots_(comm, device, SlotArena::Memory::kPlain),
      gradient_slots_(comm, device, SlotArena::Memory::kComm),
      reduced_slots_(comm, device, SlotArena::Memory::kPlain) {}

RunContext::~RunContext() {
  if (std::uncaught_exceptions() > 0) {
    return;  // peers may never come; the exception must not wait for them
  }
  try {
    wait_for_marks();  // the group must not leave while its peers still read the last one
  } catch (...) {      // NOLINT(bugprone-empty-catch): it has ended, and that is all that matters
  }
}

void RunContext::set_units(const std::vector<std::shared_ptr<ModuleState>>& units) {
  units_.assign(units.begin(), units.end());
  for (const std::shared_ptr<ModuleState>& unit : units) {
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      if (std::find(comms_.begin(), comms_.end(), group->comm()) == comms_.end()) {
        comms_.push_back(group->comm());
      }
    }
  }
}

void RunContext::end_forward(bool has_backward) {
  for (const std::shared_ptr<Collectives>& comm : comms_) {
    marks_.push_back(comm->mark({Lane::kGather, "the end of a forward"}));
  }
  if (!has_backward) {
    wait_for_marks();
    ++write_epoch_;
  }
}

void RunContext::wait_for_marks() {
  for (const WorkPtr& mark : std::exchange(marks_, {})) {
    mark->wait();
  }
}

void RunContext::begin_forward() {
  wait_for_marks();
  ++forward_id_;
  ++write_epoch_;
  order_.begin_forward();
}

void RunContext::prefetch(const plan::Upcoming& units) {
  size_t gathers = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const std::shared_ptr<ModuleState> unit = units_[static_cast<size_t>(units[i])].lock();
    gathers += unit ? unit->groups().size() : 0;
    const bool is_free = unit && unit->takes_no_memory_to_unshard() && gathers <= kFreeGathersAhead;
    if (!unit || (i > 0 && !is_free)) {
      return;
    }
    unit->start_unshard();
  }
}

namespace {

// Returns whether there was an explicit list.
bool prefetch_listed(const std::vector<std::weak_ptr<ModuleState>>& listed) {
  for (const std::weak_ptr<ModuleState>& weak : listed) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->start_unshard();
    }
  }
  return !listed.empty();
}

}  // namespace

void RunContext::on_unit_forward(const ModuleState& unit) {
  const plan::Upcoming next = order_.on_forward(unit.index());
  if (!prefetch_listed(unit.forward_prefetch)) {
    prefetch(next);
  }
}

void RunContext::on_unit_forward_end(const ModuleState& unit) {
  order_.on_forward_end(unit.index());
}

void RunContext::on_unit_backward(const ModuleState& unit) {
  const plan::Upcoming next = order_.on_backward(unit.index());
  if (!prefetch_listed(unit.backward_prefetch)) {
    prefetch(next);
  }
}

void RunContext::enter_backward() {
  if (backward_queued_ && !backward_mark_.expired()) {
    return;
  }
  reset_failed_backward();
  backward_queued_ = true;
  order_.begin_backward();
  const auto mark = std::make_shared<BackwardMark>();
  backward_mark_ = mark;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [self = shared_from_this(), mark] { self->finalize_backward(); });
}

bool RunContext::in_backward() const {
  return backward_queued_ && !backward_mark_.expired() &&
         torch::autograd::get_current_graph_task_id() != -1;
}

void RunContext::reset_failed_backward() {
  if (!backward_queued_) {
    return;
  }
  finish_all_reductions();
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->abandon_backward();
    }
  }
  show_gradients();
  backward_queued_ = false;
  hook_error_ = nullptr;  // what the backward has thrown is its error
}

void RunContext::settle_gradients() {
  if (!in_backward()) {
    reset_failed_backward();
  }
}

void RunContext::finalize_backward() {
  // Every rank walks the same list, so the remaining units are reduced in the same order on all
  // ranks.
  for (auto weak = units_.rbegin(); weak != units_.rend(); ++weak) {
    if (std::shared_ptr<ModuleState> unit = weak->lock()) {
      unit->post_backward();
    }
  }
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    std::shared_ptr<ModuleState> unit = weak.lock();
    if (unit && unit->reshard_after_backward) {
      unit->reshard();
    }
  }
  // After that, so that who has the others' answers knows that they do not read its shards.
  UsesExchange uses(std::exchange(reduced_, {}));
  finish_all_reductions();
  uses.finish();
  wait_for_marks();
  show_gradients();
  ++write_epoch_;
  backward_queued_ = false;
  // All that peers take part in has been done: this rank has lost gradients, but not its place.
  if (const std::exception_ptr error = std::exchange(hook_error_, nullptr)) {
    std::rethrow_exception(error);
  }
}

void RunContext::show_gradients() {
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
        group->show_gradients();
      }
    }
  }
}

void RunContext::reshard_all() {
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->reshard();
    }
  }
}

SlotLease RunContext::acquire_gradient_slot(int64_t bytes) {
  while (true) {
    if (SlotLease slot = gradient_slots_.try_acquire(bytes)) {
      return slot;
    }
    if (gradient_slots_.count(bytes) < plan::kGradientSlotsPerSize || !release_oldest_input()) {
      return gradient_slots_.acquire(bytes);
    }
  }
}

SlotLease RunContext::acquire_reduced_slot(int64_t bytes) {
  while (true) {
    if (SlotLease slot = reduced_slots_.try_acquire(bytes)) {
      return slot;
    }
    if (reduced_slots_.count(bytes) < plan::kReducedSlotsPerSize || reducing_.empty()) {
      return reduced_slots_.acquire(bytes);
    }
    finish_oldest_reduction();
  }
}

bool RunContext::release_oldest_input() {
  const auto oldest =
      std::find_if(reducing_.begin(), reducing_.end(),
                   [](const GradientReducer* reducer) { return reducer->holds_input(); });
  if (oldest == reducing_.end()) {
    return false;
  }
  (*oldest)->release_input();
  return true;
}

void RunContext::finish_oldest_reduction() {
  // A failed reduction stays in the queue, so that later calls throw the same error.
  reducing_.front()->finish();
  if (hook_error_ == nullptr) {
    hook_error_ = reducing_.front()->hook_error();
  }
  reducing_.pop_front();
}

void RunContext::finish_reductions_through(const GradientReducer& reducer) {
  while (reducer.is_reducing()) {
    TORCH_INTERNAL_ASSERT(!reducing_.empty());
    finish_oldest_reduction();
  }
}

void RunContext::finish_all_reductions() {
  while (!reducing_.empty()) {
    finish_oldest_reduction();
  }
}

void RunContext::add_reduced(ParamGroup* group) {
  if (std::find(reduced_.begin(), reduced_.end(), group) == reduced_.end()) {
    reduced_.push_back(group);
  }
}

void RunContext::forget(ParamGroup* group) {
  std::erase(reduced_, group);
  std::erase(reducing_, &group->reducer());
}

RuntimeCounters RunContext::counters() const {
  RuntimeCounters counters = counters_;
  counters.slot_allocations =
      parameter_slots_.allocations() + gradient_slots_.allocations() + reduced_slots_.allocations();
  counters.slot_bytes = parameter_slots_.bytes() + gradient_slots_.bytes() + reduced_slots_.bytes();
  return counters;
}

}  // namespace fsdp
