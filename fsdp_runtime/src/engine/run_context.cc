#include "fsdp_runtime/src/engine/run_context.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp_runtime/plan/memory_plan.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/uses_exchange.h"
#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp {

RunContext::RunContext(std::shared_ptr<Collectives> comm, c10::Device device,
                       const PrefetchOptions& prefetch_options)
    : slots_(std::make_shared<SlotArenas>(std::move(comm), device)),
      prefetch_options_(prefetch_options) {}

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
    if (unit->modules_to_run().are_several()) {
      lists_.push_back(unit);
    }
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      if (std::find(comms_.begin(), comms_.end(), group->comm()) == comms_.end()) {
        comms_.push_back(group->comm());
      }
    }
  }
}

void RunContext::end_open_forwards() {
  for (const std::weak_ptr<ModuleState>& weak : lists_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->end_open_forward();
    }
  }
}

void RunContext::abandon_forward() {
  for (const std::weak_ptr<ModuleState>& weak : lists_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->abandon_open_forward();
    }
  }
  reshard_all();
}

void RunContext::end_forward(bool has_backward) {
  for (const std::shared_ptr<Collectives>& comm : comms_) {
    marks_.push_back(comm->mark({Lane::kGather, "the end of a forward"}));
  }
  if (!has_backward) {
    wait_for_marks();
    settle_offload();
    ++write_epoch_;
  }
}

void RunContext::wait_for_marks() {
  for (const WorkPtr& mark : std::exchange(marks_, {})) {
    mark->wait();
  }
}

void RunContext::begin_forward() {
  end_open_forwards();
  wait_for_marks();
  ++forward_id_;
  ++write_epoch_;
  order_.begin_forward();
}

void RunContext::set_post_optim_event(std::shared_ptr<c10::Event> event) {
  if (event && event->device_type() != c10::kCPU) {
    TORCH_CHECK(
        event->was_marked_for_recording(),
        "set_post_optim_event: the event has not been recorded, so there is nothing to wait "
        "for; record it behind the optimizer's step, and pass it then");
    TORCH_CHECK(slots_->device.is_cpu() || event->device() == slots_->device,
                "set_post_optim_event: an event on ", event->device(),
                ", but the parameters are on ", slots_->device,
                "; record it there, on the stream of the training");
  }
  if (!event || slots_->update.lock() != event) {
    slots_->update = event;
    slots_->uses_at_update = slots_->uses;
  }
  update_ = std::move(event);
  uses_at_update_ = slots_->uses_at_update;  // when the first of the roots was given it
}

std::optional<c10::Stream> RunContext::take_stream_behind_update() {
  const std::shared_ptr<c10::Event> update = std::exchange(update_, nullptr);
  if (!update || update->device_type() == c10::kCPU || slots_->uses != uses_at_update_) {
    return std::nullopt;
  }
  const c10::Device device(update->device_type(), update->device_index());
  if (!behind_update_) {
    behind_update_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  }
  update->block(*behind_update_);
  return behind_update_;
}

std::optional<c10::Stream> RunContext::current_stream_behind_update() const {
  if (!behind_update_) {
    return std::nullopt;
  }
  const c10::Device device = behind_update_->device();
  const bool is_current =
      c10::impl::VirtualGuardImpl(device.type()).getStream(device) == *behind_update_;
  return is_current ? behind_update_ : std::nullopt;
}

namespace {

/// See ParamGroup::is_accumulated.
bool accumulates_any(const std::vector<std::weak_ptr<ModuleState>>& units) {
  return std::any_of(units.begin(), units.end(), [](const std::weak_ptr<ModuleState>& weak) {
    const std::shared_ptr<ModuleState> unit = weak.lock();
    return unit && std::any_of(unit->groups().begin(), unit->groups().end(),
                               [](const auto& group) { return group->is_accumulated(); });
  });
}

}  // namespace

void RunContext::enter_backward() {
  if (backward_queued_ && !backward_mark_.expired()) {
    return;
  }
  reset_failed_backward();
  end_open_forwards();
  backward_queued_ = true;
  ++backward_id_;
  users_.clear();
  std::erase(to_use_, nullptr);
  to_use_.push_back(nullptr);
  accumulates_gradients_ = accumulates_any(units_);
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
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->abandon_backward();
    }
  }
  finish_all_reductions();  // if one has failed for good, its error is all that can follow
  settle_offload();
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
  if (is_last_backward_) {
    end_gradients();
  }
  backward_queued_ = false;
  end_uses();
  // All that peers take part in has been done: this rank has lost gradients, but not its place.
  if (const std::exception_ptr error = std::exchange(hook_error_, nullptr)) {
    std::rethrow_exception(error);
  }
}

void RunContext::end_gradients() {
  std::erase(to_use_, nullptr);
  use_gradients();
  // When all is resharded, so that who has the others' answers knows that they do not read its
  // shards.
  UsesExchange uses(std::exchange(reduced_, {}));
  finish_all_reductions();
  uses.finish();
  wait_for_marks();
  settle_offload();
  show_gradients();
  ++write_epoch_;
}

void RunContext::for_groups(void (ParamGroup::*call)()) const {
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
        (group.get()->*call)();
      }
    }
  }
}

void RunContext::show_gradients() { for_groups(&ParamGroup::show_gradients); }

void RunContext::settle_offload() { for_groups(&ParamGroup::settle_offload); }

void RunContext::reshard_all() {
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->reshard();
      unit->restore_precision();
    }
  }
}

void RunContext::share_slots(const RunContext& other) {
  if (slots_ == other.slots_) {
    return;
  }
  TORCH_CHECK(
      !slots_->is_in_use() && !other.slots_->is_in_use(),
      "share_comm_ctx: units of the roots are gathered, or have gradients that have not been "
      "reduced; call it before the first forward");
  TORCH_CHECK(slots_->comm == other.slots_->comm && slots_->device == other.slots_->device,
              "share_comm_ctx: a root is on ", slots_->device, ", another on ",
              other.slots_->device,
              ", or their meshes have different groups; shard roots that "
              "share memory over one mesh");
  slots_ = other.slots_;
  update_ = nullptr;  // it knows nothing of the other's memory
}

SlotLease RunContext::acquire_gradient_slot(int64_t bytes) {
  while (true) {
    if (SlotLease slot = slots_->gradients.try_acquire(bytes)) {
      return slot;
    }
    if (slots_->gradients.count(bytes) < plan::kGradientSlotsPerSize || !release_oldest_input()) {
      return slots_->gradients.acquire(bytes);
    }
  }
}

SlotLease RunContext::acquire_reduced_slot(int64_t bytes) {
  while (true) {
    if (SlotLease slot = slots_->reduced.try_acquire(bytes)) {
      return slot;
    }
    if (slots_->reduced.count(bytes) < plan::kReducedSlotsPerSize || reducing_.empty()) {
      return slots_->reduced.acquire(bytes);
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
  const trace::Span waits("wait", "wait for the oldest reduction", {});
  // A failed reduction stays in the queue, so that later calls throw the same error.
  reducing_.front()->finish();
  keep_hook_error(reducing_.front()->hook_error());
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
  std::erase(to_use_, group);
  std::erase(reducing_, &group->reducer());
}

RuntimeCounters RunContext::counters() const {
  RuntimeCounters counters = counters_;
  counters.slot_allocations = slots_->allocations();
  counters.slot_bytes = slots_->bytes();
  return counters;
}

}  // namespace fsdp
