#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <map>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/optim/adamw_kernel.h"
#include "fsdp_runtime/src/optim/step_counters.h"

namespace fsdp {

/// Elements [begin, end) of a flat shard.
struct ShardSegment {
  int64_t begin = 0;
  int64_t end = 0;
};

struct AdamW::GroupState {
  /// A parameter of the group.
  struct Param {
    ShardSegment segment;  // its elements of the shard, with the padding behind them, which is zero
    bool decays = true;
  };
  std::shared_ptr<ParamGroup> group;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  std::vector<Param> params;  // in the group's order
  size_t first = 0;           // number of the first one, counted over all groups
};

/// What a step updates. Made when other parameters than in the last step have a gradient, and used
/// until that happens again.
struct AdamW::Updates {
  std::vector<uint8_t> takes_part;    // by parameter, in the order of the groups
  std::vector<at::Tensor> gradients;  // by group; undefined if no parameter takes part
  std::vector<at::Tensor> counters;   // of the parameters that take part
  std::vector<AdamWList> lists;
};

namespace {

// Of each parameter of the group.
std::vector<ShardSegment> segments_of(const ParamGroup& group) {
  std::vector<ShardSegment> segments(group.size());
  int64_t end = group.store().layout().shard_numel;
  for (size_t i = group.size(); i-- > 0;) {
    const bool is_elsewhere = group.store().slice(i).numel() == 0;
    segments[i] = {is_elsewhere ? end : group.store().slice(i).shard_offset, end};
    end = segments[i].begin;
  }
  return segments;
}

// Whether each parameter of the group decays.
std::vector<bool> decays_of(const ParamGroup& group, const std::vector<ParamRef>& params,
                            const std::function<bool(const std::string&)>& no_decay) {
  std::vector<bool> decays(group.size(), true);
  for (const ParamRef& param : params) {
    if (param.group == &group) {
      decays[param.index] = !no_decay || !no_decay(param.fqn);
    }
  }
  return decays;
}

AdamWList& list_for(std::vector<AdamWList>& lists, at::ScalarType dtype, bool decays) {
  const auto found = std::find_if(lists.begin(), lists.end(),
                                  [=](const AdamWList& list) { return list.holds(dtype, decays); });
  return found == lists.end() ? lists.emplace_back(dtype, decays) : *found;
}

at::Tensor zero_counter(c10::Device device) {
  // What LibTorch's fused kernel expects; the CPU counts exactly.
  const at::ScalarType dtype = device.is_cpu() ? at::kLong : at::kFloat;
  return at::zeros({}, at::TensorOptions().dtype(dtype).device(device));
}

std::vector<LocalShard> state_slices(const ModuleState& root,
                                     const std::function<at::Tensor(const ParamGroup*)>& flat) {
  std::vector<LocalShard> parts;
  for (const ParamRef& param : params_below(root)) {
    if (const at::Tensor state = flat(param.group); state.defined()) {
      parts.push_back(part_of(param, state));
    }
  }
  return parts;
}

}  // namespace

AdamW::AdamW(FSDPModule root, AdamWOptions options)
    : root_(std::move(root)), options_(std::move(options)) {
  TORCH_CHECK(root_, "AdamW: empty FSDPModule handle; pass what fully_shard returned for the root");
  TORCH_CHECK(options_.eps >= 0 && options_.weight_decay >= 0 && options_.lr >= 0,
              "AdamW: lr, eps and weight_decay are at least 0, got ", options_.lr, ", ",
              options_.eps, " and ", options_.weight_decay);
  for (double beta : {options_.beta1, options_.beta2}) {
    TORCH_CHECK(beta >= 0 && beta < 1, "AdamW: betas must be in [0, 1), got ", beta);
  }
  at::NoGradGuard no_grad;
  const std::vector<ParamRef> params = params_below(*root_.state());
  for (const FSDPModule& unit : root_.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      if (group->is_trainable()) {
        add_group(group, params);
      }
    }
  }
  if (!groups_.empty()) {
    const c10::Device device = groups_.front()->exp_avg.device();
    counters_.push_back(zero_counter(device));
    lr_ = at::full({}, options_.lr, at::TensorOptions().dtype(at::kFloat).device(device));
  }
}

void AdamW::add_group(const std::shared_ptr<ParamGroup>& group,
                      const std::vector<ParamRef>& params) {
  auto state = std::make_shared<GroupState>();
  state->group = group;
  state->exp_avg = at::zeros_like(group->store().shard());
  state->exp_avg_sq = at::zeros_like(group->store().shard());
  state->first = counter_of_.size();
  const std::vector<ShardSegment> segments = segments_of(*group);
  const std::vector<bool> decays = decays_of(*group, params, options_.no_decay);
  for (size_t i = 0; i < group->size(); ++i) {
    state->params.push_back({segments[i], decays[i]});
  }
  counter_of_.resize(counter_of_.size() + group->size(), 0);
  groups_.push_back(std::move(state));
}

void AdamW::set_lr(double lr) {
  options_.lr = lr;
  if (lr_.defined()) {
    lr_.fill_(lr);
  }
}

bool AdamW::is_current(const Updates& updates) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const GroupState& state = *groups_[g];
    if (!updates.gradients[g].is_same(state.group->gradient())) {
      return false;
    }
    for (size_t i = 0; i < state.params.size(); ++i) {
      if ((updates.takes_part[state.first + i] != 0) != state.group->has_gradient(i)) {
        return false;
      }
    }
  }
  return true;
}

void AdamW::list_group(const GroupState& state, Updates& updates) {
  size_t next = 0;
  while (next < state.params.size()) {
    const size_t first = next++;
    const auto counter = [&](size_t i) { return counter_of_[state.first + i]; };
    if (updates.takes_part[state.first + first] == 0) {
      continue;
    }
    // Neighbours that are updated alike become one part.
    while (next < state.params.size() && updates.takes_part[state.first + next] != 0 &&
           counter(next) == counter(first) &&
           state.params[next].decays == state.params[first].decays) {
      ++next;
    }
    const int64_t begin = state.params[first].segment.begin;
    const int64_t numel = state.params[next - 1].segment.end - begin;
    if (numel > 0) {
      const at::Tensor& shard = state.group->store().shard();
      const at::Tensor copy = state.group->store().copy_for_peers();
      list_for(updates.lists, shard.scalar_type(), state.params[first].decays)
          .add({shard.narrow(0, begin, numel), state.group->gradient().narrow(0, begin, numel),
                state.exp_avg.narrow(0, begin, numel), state.exp_avg_sq.narrow(0, begin, numel),
                counters_[counter(first)],
                copy.defined() ? copy.narrow(0, begin, numel) : at::Tensor()});
    }
  }
}

void AdamW::renew_updates() {
  updates_.reset();
  auto updates = std::make_shared<Updates>();
  for (const std::shared_ptr<GroupState>& state : groups_) {
    updates->gradients.push_back(state->group->gradient());
    for (size_t i = 0; i < state->params.size(); ++i) {
      updates->takes_part.push_back(state->group->has_gradient(i) ? 1 : 0);
    }
  }
  std::vector<size_t> counter_of = counter_of_;
  std::vector<at::Tensor> counters = counters_;
  for (const size_t from : split_counters(counter_of, updates->takes_part, counters.size())) {
    counters.push_back(counters[from].clone());
  }
  counter_of_ = std::move(counter_of);
  counters_ = std::move(counters);
  std::vector<bool> counts(counters_.size());
  for (size_t i = 0; i < counter_of_.size(); ++i) {
    if (updates->takes_part[i] != 0 && !counts[counter_of_[i]]) {
      counts[counter_of_[i]] = true;
      updates->counters.push_back(counters_[counter_of_[i]]);
    }
  }
  for (const std::shared_ptr<GroupState>& state : groups_) {
    list_group(*state, *updates);
  }
  updates_ = std::move(updates);
}

void AdamW::check_whole() const {
  TORCH_CHECK(
      !is_torn_,
      "AdamW: a step has failed in the middle, so only some of the parameters have done it; "
      "load parameters and state, from a checkpoint for one, and set their step counts");
}

void AdamW::step() {
  check_whole();
  at::NoGradGuard no_grad;
  for (const std::shared_ptr<GroupState>& state : groups_) {
    state->group->settle_gradient();
  }
  const std::vector<FSDPModule> units = root_.units();
  for (const FSDPModule& unit : units) {
    unit.state()->reshard();  // what is gathered would be stale
  }
  for (const FSDPModule& unit : units) {
    unit.state()->begin_update();
  }
  if (!updates_ || !is_current(*updates_)) {
    renew_updates();
  }
  is_torn_ = true;
  if (!updates_->counters.empty()) {
    at::_foreach_add_(updates_->counters, 1);
  }
  for (AdamWList& list : updates_->lists) {
    if (lr_.is_cpu()) {
      list.apply_in_pieces(options_);
    } else {
      list.apply_fused(options_, lr_);
    }
  }
  for (const FSDPModule& unit : units) {
    unit.state()->end_update();
  }
  is_torn_ = false;
  ++step_count_;
}

void AdamW::zero_grad() {
  for (const std::shared_ptr<GroupState>& state : groups_) {
    state->group->settle_backward();
  }
  for (const std::shared_ptr<GroupState>& state : groups_) {
    state->group->drop_gradient();
  }
}

void AdamW::set_counters(const std::vector<int64_t>& steps) {
  at::NoGradGuard no_grad;
  std::map<int64_t, size_t> numbers;
  counters_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [found, is_new] = numbers.try_emplace(steps[i], counters_.size());
    if (is_new) {
      counters_.push_back(zero_counter(lr_.device()).fill_(steps[i]));
    }
    counter_of_[i] = found->second;
  }
  updates_.reset();
  is_torn_ = false;
}

void AdamW::set_step_count(int64_t step_count) {
  step_count_ = step_count;
  set_counters(std::vector<int64_t>(counter_of_.size(), step_count));
}

std::vector<int64_t> AdamW::parameter_steps() const {
  check_whole();
  std::vector<int64_t> counts;
  for (const at::Tensor& counter : counters_) {
    counts.push_back(counter.item().to<int64_t>());
  }
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root_.state())) {
    const std::shared_ptr<GroupState> state = state_of(param.group);
    steps.push_back(state ? counts[counter_of_[state->first + param.index]] : 0);
  }
  return steps;
}

void AdamW::set_parameter_steps(const std::vector<int64_t>& steps) {
  const std::vector<ParamRef> params = params_below(*root_.state());
  TORCH_CHECK(steps.size() == params.size(), "AdamW: step counts of ", steps.size(),
              " parameters given, there are ", params.size());
  for (size_t i = 0; i < params.size(); ++i) {
    TORCH_CHECK(steps[i] >= 0 || !state_of(params[i].group), "AdamW: ", params[i].fqn,
                " cannot have done ", steps[i], " steps");
  }
  step_count_ = 0;
  std::vector<int64_t> by_number(counter_of_.size(), 0);
  for (size_t i = 0; i < params.size(); ++i) {
    if (const std::shared_ptr<GroupState> state = state_of(params[i].group)) {
      by_number[state->first + params[i].index] = steps[i];
      step_count_ = std::max(step_count_, steps[i]);
    }
  }
  set_counters(by_number);
}

std::shared_ptr<AdamW::GroupState> AdamW::state_of(const ParamGroup* group) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [group](const auto& state) {
    return state->group.get() == group;
  });
  return found == groups_.end() ? nullptr : *found;
}

std::vector<LocalShard> AdamW::slices_of(at::Tensor GroupState::*tensor) const {
  return state_slices(*root_.state(), [&](const ParamGroup* group) {
    const std::shared_ptr<GroupState> state = state_of(group);
    return state ? (*state).*tensor : at::Tensor();
  });
}

std::vector<LocalShard> AdamW::exp_avg() const { return slices_of(&GroupState::exp_avg); }

std::vector<LocalShard> AdamW::exp_avg_sq() const { return slices_of(&GroupState::exp_avg_sq); }

}  // namespace fsdp
