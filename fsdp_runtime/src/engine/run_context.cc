#include "fsdp_runtime/src/engine/run_context.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/plan/memory_plan.h"
#include "fsdp_runtime/src/engine/module_state.h"

namespace fsdp {

/// The groups of one communicator; all ranks have reduced the same in the same order.
struct RunContext::Exchange {
  Collectives* comm = nullptr;
  std::vector<ParamGroup*> groups;
  std::vector<uint8_t> uses;  // of this rank, group by group
  AgreementPtr agreement;
};

RunContext::RunContext(std::shared_ptr<Collectives> comm, c10::Device device)
    : parameter_slots_(comm, device, SlotArena::Memory::kPlain),
      gradient_slots_(comm, device, SlotArena::Memory::kComm) {}

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
      if (std::find(comms_.begin(), comms_.end(), group->shared_comm()) == comms_.end()) {
        comms_.push_back(group->shared_comm());
      }
    }
  }
}

void RunContext::end_forward(bool has_backward) {
  for (const std::shared_ptr<Collectives>& comm : comms_) {
    comm->name_next("the end of a forward");
    marks_.push_back(comm->mark(Lane::kGather));
  }
  if (!has_backward) {
    wait_for_marks();
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
  order_.begin_forward();
}

void RunContext::prefetch(int64_t unit_index) {
  if (std::shared_ptr<ModuleState> unit = units_[static_cast<size_t>(unit_index)].lock()) {
    unit->start_unshard();
  }
}

namespace {

uint64_t digest_of(const std::vector<uint8_t>& flags) {
  Fnv1a digest;
  for (const uint8_t flag : flags) {
    digest.mix(flag);
  }
  return digest.digest();
}

/// Element by element, 1 where `own` is 1 on some rank.
std::vector<uint8_t> any_of_ranks(Collectives& comm, const std::vector<uint8_t>& own) {
  at::Tensor flags = at::empty({static_cast<int64_t>(own.size())}, at::kInt);
  std::copy(own.begin(), own.end(), flags.data_ptr<int32_t>());
  flags = flags.to(comm.device());
  comm.name_next("the parameters in use");
  comm.all_reduce(flags, ReduceOp::kMax, Lane::kReduce)->wait();
  flags = flags.cpu();
  std::vector<uint8_t> all(own.size());
  std::copy_n(flags.data_ptr<int32_t>(), all.size(), all.begin());
  return all;
}

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
  const std::optional<int64_t> next = order_.on_forward(unit.index());
  if (!prefetch_listed(unit.forward_prefetch) && next) {
    prefetch(*next);
  }
}

void RunContext::on_unit_forward_end(const ModuleState& unit) {
  order_.on_forward_end(unit.index());
}

void RunContext::on_unit_backward(const ModuleState& unit) {
  const std::optional<int64_t> next = order_.on_backward(unit.index());
  if (!prefetch_listed(unit.backward_prefetch) && next) {
    prefetch(*next);
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
  backward_queued_ = false;
}

void RunContext::finalize_backward() {
  // Every rank walks the same list, so the remaining units are reduced in the same order on all
  // ranks.
  for (auto weak = units_.rbegin(); weak != units_.rend(); ++weak) {
    if (std::shared_ptr<ModuleState> unit = weak->lock()) {
      unit->post_backward();
    }
  }
  std::vector<Exchange> exchanges = start_exchange_of_uses();
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    std::shared_ptr<ModuleState> unit = weak.lock();
    if (unit && unit->reshard_after_backward) {
      unit->reshard();
    }
  }
  finish_all_reductions();
  finish_exchange_of_uses(std::move(exchanges));
  wait_for_marks();
  backward_queued_ = false;
}

void RunContext::reshard_all() {
  for (const std::weak_ptr<ModuleState>& weak : units_) {
    if (std::shared_ptr<ModuleState> unit = weak.lock()) {
      unit->reshard();
    }
  }
}

Slot* RunContext::acquire_gradient_slot(int64_t bytes) {
  while (true) {
    if (Slot* slot = gradient_slots_.try_acquire(bytes)) {
      return slot;
    }
    if (gradient_slots_.count(bytes) < plan::kGradientSlotsPerSize || reducing_.empty()) {
      return gradient_slots_.acquire(bytes);
    }
    finish_oldest_reduction();
  }
}

void RunContext::finish_oldest_reduction() {
  // A failed reduction stays in the queue, so that later calls throw the same error.
  reducing_.front()->finish_reduction();
  reducing_.pop_front();
}

void RunContext::finish_reductions_through(const ParamGroup* group) {
  while (group->is_reducing()) {
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

std::vector<RunContext::Exchange> RunContext::start_exchange_of_uses() {
  std::vector<Exchange> exchanges;
  for (ParamGroup* group : reduced_) {
    auto exchange =
        std::find_if(exchanges.begin(), exchanges.end(),
                     [group](const Exchange& known) { return known.comm == &group->comm(); });
    if (exchange == exchanges.end()) {
      exchange = exchanges.insert(exchanges.end(), {&group->comm(), {}, {}, nullptr});
    }
    exchange->groups.push_back(group);
    exchange->uses.insert(exchange->uses.end(), group->own_uses().begin(), group->own_uses().end());
  }
  reduced_.clear();
  for (Exchange& exchange : exchanges) {
    exchange.comm->name_next("the end of a backward");
    exchange.agreement = exchange.comm->agree(digest_of(exchange.uses));
  }
  return exchanges;
}

void RunContext::finish_exchange_of_uses(std::vector<Exchange> exchanges) {
  for (Exchange& exchange : exchanges) {
    if (!exchange.agreement->wait()) {
      exchange.uses = any_of_ranks(*exchange.comm, exchange.uses);
    }
    const uint8_t* next = exchange.uses.data();
    for (ParamGroup* group : exchange.groups) {
      group->add_uses(next);
      next += group->size();
    }
  }
}

void RunContext::remove_reduction(const ParamGroup* group) {
  reduced_.erase(std::remove(reduced_.begin(), reduced_.end(), group), reduced_.end());
  reducing_.erase(std::remove(reducing_.begin(), reducing_.end(), group), reducing_.end());
}

RuntimeCounters RunContext::counters() const {
  RuntimeCounters counters = counters_;
  counters.slot_allocations = parameter_slots_.allocations() + gradient_slots_.allocations();
  counters.slot_bytes = parameter_slots_.bytes() + gradient_slots_.bytes();
  return counters;
}

}  // namespace fsdp
