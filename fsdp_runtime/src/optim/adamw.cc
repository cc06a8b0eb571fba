#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <map>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/optim/adamw_kernel.h"

namespace fsdp {

struct AdamW::GroupState {
  std::shared_ptr<ParamGroup> group;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  std::vector<DecaySegment> segments;
  int64_t steps = 0;  // updates of this group, as a group without gradient is skipped
};

namespace {

// One segment per run of parameters with the same decay setting; padding belongs to the preceding
// segment and stays zero.
std::vector<DecaySegment> segments_of(const ParamGroup& group, const std::vector<ParamRef>& params,
                                      const std::function<bool(const std::string&)>& no_decay) {
  std::vector<DecaySegment> segments;
  for (const ParamRef& param : params) {
    if (param.group != &group || group.slice(param.index).numel() == 0) {
      continue;
    }
    const bool decays = !no_decay || !no_decay(param.fqn);
    const int64_t begin = segments.empty() ? 0 : group.slice(param.index).shard_offset;
    if (segments.empty() || segments.back().decays != decays) {
      if (!segments.empty()) {
        segments.back().end = begin;
      }
      segments.push_back({begin, 0, decays});
    }
  }
  if (!segments.empty()) {
    segments.back().end = group.layout().shard_numel;
  }
  return segments;
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
      state->segments = segments_of(*group, params, options_.no_decay);
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
    const at::Tensor gradient = state->group->gradient();
    if (!gradient.defined()) {
      continue;
    }
    ++state->steps;
    const AdamWStep step = make_adamw_step(options_, state->steps);
    const AdamWTensors tensors{state->group->shard(), gradient, state->exp_avg, state->exp_avg_sq};
    apply_adamw(tensors, state->segments, step);
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
    state->steps = step_count;
  }
}

std::vector<int64_t> AdamW::parameter_steps() const {
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root_.state())) {
    const std::shared_ptr<GroupState> state = state_of(param.group);
    steps.push_back(state ? state->steps : 0);
  }
  return steps;
}

void AdamW::set_parameter_steps(const std::vector<int64_t>& steps) {
  const std::vector<ParamRef> params = params_below(*root_.state());
  TORCH_CHECK(steps.size() == params.size(), "AdamW: step counts of ", steps.size(),
              " parameters given, there are ", params.size());
  std::map<const ParamGroup*, size_t> first_of;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!state_of(params[i].group)) {
      continue;
    }
    TORCH_CHECK(steps[i] >= 0, "AdamW: ", params[i].fqn, " cannot have done ", steps[i], " steps");
    const size_t first = first_of.try_emplace(params[i].group, i).first->second;
    TORCH_CHECK(steps[i] == steps[first], "AdamW: ", params[first].fqn, " has done ", steps[first],
                " steps but ", params[i].fqn, " ", steps[i],
                "; they are sharded as one group, which is updated as a whole with one bias "
                "correction");
  }
  step_count_ = 0;
  for (const std::shared_ptr<GroupState>& state : groups_) {
    state->steps = steps[first_of.at(state->group.get())];
    step_count_ = std::max(step_count_, state->steps);
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
