#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <map>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/optim/adamw_kernel.h"

namespace fsdp {

struct AdamW::GroupState {
  /// A parameter of the group.
  struct Param {
    DecaySegment segment;  // its elements of the shard, with the padding behind them, which is zero
    int64_t steps = 0;     // it has been updated
  };
  std::shared_ptr<ParamGroup> group;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  std::vector<Param> params;  // in the group's order
};

namespace {

// Of each parameter of the group.
std::vector<DecaySegment> segments_of(const ParamGroup& group, const std::vector<ParamRef>& params,
                                      const std::function<bool(const std::string&)>& no_decay) {
  std::vector<DecaySegment> segments(group.size());
  for (const ParamRef& param : params) {
    if (param.group == &group) {
      segments[param.index].decays = !no_decay || !no_decay(param.fqn);
    }
  }
  int64_t end = group.layout().shard_numel;
  for (size_t i = group.size(); i-- > 0;) {
    const bool is_elsewhere = group.slice(i).numel() == 0;
    segments[i].end = end;
    segments[i].begin = is_elsewhere ? end : group.slice(i).shard_offset;
    end = segments[i].begin;
  }
  return segments;
}

// Neighbours that are updated alike become one segment.
void append(std::vector<DecaySegment>& segments, const DecaySegment& next) {
  if (next.begin == next.end) {
    return;
  }
  if (!segments.empty() && segments.back().end == next.begin &&
      segments.back().decays == next.decays) {
    segments.back().end = next.end;
  } else {
    segments.push_back(next);
  }
}

std::vector<ShardedSlice> state_slices(const ModuleState& root,
                                       const std::function<at::Tensor(const ParamGroup*)>& flat) {
  std::vector<ShardedSlice> slices;
  for (const ParamRef& param : params_below(root)) {
    const at::Tensor state = flat(param.group);
    if (!state.defined()) {
      continue;
    }
    const plan::ParamSlice& slice = param.group->slice(param.index);
    slices.push_back({param.fqn, param.group->shape(param.index), slice.flat_begin, slice.flat_end,
                      state.narrow(0, slice.shard_offset, slice.numel())});
  }
  return slices;
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
  const std::vector<ParamRef> params = params_below(*root_.state());
  for (const FSDPModule& unit : root_.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      if (!group->is_trainable()) {
        continue;
      }
      auto state = std::make_shared<GroupState>();
      state->group = group;
      state->exp_avg = at::zeros_like(group->shard());
      state->exp_avg_sq = at::zeros_like(group->shard());
      for (const DecaySegment& segment : segments_of(*group, params, options_.no_decay)) {
        state->params.push_back({segment});
      }
      groups_.push_back(std::move(state));
    }
  }
}

void AdamW::step() {
  at::NoGradGuard no_grad;
  for (const FSDPModule& unit : root_.units()) {
    unit.state()->reshard();  // unsharded parameters are about to be stale
  }
  for (const std::shared_ptr<GroupState>& state : groups_) {
    std::map<int64_t, std::vector<DecaySegment>> by_steps;  // usually one: of all parameters
    for (size_t i = 0; i < state->params.size(); ++i) {
      if (state->group->has_gradient(i)) {
        GroupState::Param& param = state->params[i];
        append(by_steps[++param.steps], param.segment);
      }
    }
    const AdamWTensors tensors{state->group->shard(), state->group->gradient(), state->exp_avg,
                               state->exp_avg_sq};
    for (const auto& [steps, segments] : by_steps) {
      apply_adamw(tensors, segments, make_adamw_step(options_, steps));
    }
  }
  ++step_count_;
}

void AdamW::zero_grad() {
  for (const FSDPModule& unit : root_.units()) {
    RunContext& context = unit.state()->context();
    if (!context.in_backward()) {
      context.reset_failed_backward();  // or its last reductions would still arrive
    }
  }
  for (const std::shared_ptr<GroupState>& state : groups_) {
    state->group->drop_gradient();
  }
}

void AdamW::set_step_count(int64_t step_count) {
  step_count_ = step_count;
  for (const std::shared_ptr<GroupState>& state : groups_) {
    for (GroupState::Param& param : state->params) {
      param.steps = step_count;
    }
  }
}

std::vector<int64_t> AdamW::parameter_steps() const {
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root_.state())) {
    const std::shared_ptr<GroupState> state = state_of(param.group);
    steps.push_back(state ? state->params[param.index].steps : 0);
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
  for (size_t i = 0; i < params.size(); ++i) {
    if (const std::shared_ptr<GroupState> state = state_of(params[i].group)) {
      state->params[params[i].index].steps = steps[i];
      step_count_ = std::max(step_count_, steps[i]);
    }
  }
}

std::shared_ptr<AdamW::GroupState> AdamW::state_of(const ParamGroup* group) const {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [group](const auto& state) {
    return state->group.get() == group;
  });
  return found == groups_.end() ? nullptr : *found;
}

std::vector<ShardedSlice> AdamW::slices_of(at::Tensor GroupState::*tensor) const {
  return state_slices(*root_.state(), [&](const ParamGroup* group) {
    const std::shared_ptr<GroupState> state = state_of(group);
    return state ? (*state).*tensor : at::Tensor();
  });
}

std::vector<ShardedSlice> AdamW::exp_avg() const { return slices_of(&GroupState::exp_avg); }

std::vector<ShardedSlice> AdamW::exp_avg_sq() const { return slices_of(&GroupState::exp_avg_sq); }

}  // namespace fsdp
