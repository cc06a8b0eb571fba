// What AdamW keeps of the parameters, and how it is saved and loaded.

#include "fsdp_runtime/src/optim/adamw_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"

namespace fsdp {

at::Tensor zero_counter(c10::Device device) {
  // What LibTorch's fused kernel expects; the CPU counts exactly.
  const at::ScalarType dtype = device.is_cpu() ? at::kLong : at::kFloat;
  return at::zeros({}, at::TensorOptions().dtype(dtype).device(device));
}

void AdamW::add_unit_group(const std::shared_ptr<ParamGroup>& group,
                           const std::vector<ParamRef>& params,
                           const std::vector<std::optional<size_t>>& group_of) {
  auto state = std::make_shared<UnitState>(UnitState{params_in(group, params, group_of), {}, {}});
  if (state->params.empty()) {
    return;
  }
  const std::string content = "a moment of AdamW for " + group->store().fqn(0);
  state->exp_avg = group->store().zeros_beside(state->state_numel, content);
  state->exp_avg_sq = group->store().zeros_beside(state->state_numel, content);
  state->first = counter_of_.size();
  counter_of_.resize(counter_of_.size() + state->params.size(), 0);
  units_.push_back(std::move(state));
}

void AdamW::set_counters(const std::vector<int64_t>& steps) {
  at::NoGradGuard no_grad;
  std::map<int64_t, size_t> numbers;
  counters_.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto [found, is_new] = numbers.try_emplace(steps[i], counters_.size());
    if (is_new) {
      counters_.push_back(zero_counter(lrs_.front().device()).fill_(steps[i]));
    }
    counter_of_[i] = found->second;
  }
  updates_.reset();
  is_torn_ = false;
}

void AdamW::set_step_count(int64_t step_count) {
  set_counters(std::vector<int64_t>(counter_of_.size(), step_count));
}

std::vector<int64_t> AdamW::updates_done() const {
  check_whole();
  std::vector<int64_t> counts;
  for (const at::Tensor& counter : counters_) {
    counts.push_back(counter.item().to<int64_t>());
  }
  std::vector<int64_t> done;
  for (const size_t counter : counter_of_) {
    done.push_back(counts[counter]);
  }
  return done;
}

int64_t AdamW::step_count() const {
  const std::vector<int64_t> done = updates_done();
  return done.empty() ? 0 : *std::max_element(done.begin(), done.end());
}

std::vector<int64_t> AdamW::parameter_steps() const {
  const std::vector<int64_t> done = updates_done();
  std::vector<int64_t> steps;
  for (const ParamRef& param : params_below(*root_.state())) {
    const Place place = place_of(param);
    steps.push_back(place.unit ? done[place.number()] : 0);
  }
  return steps;
}

void AdamW::set_parameter_steps(const std::vector<int64_t>& steps) {
  const std::vector<ParamRef> params = params_below(*root_.state());
  TORCH_CHECK(steps.size() == params.size(), "AdamW: step counts of ", steps.size(),
              " parameters given, there are ", params.size());
  std::vector<int64_t> by_number(counter_of_.size(), 0);
  for (size_t i = 0; i < params.size(); ++i) {
    if (const Place place = place_of(params[i]); place.unit) {
      TORCH_CHECK(steps[i] >= 0, "AdamW: ", params[i].fqn, " cannot have done ", steps[i],
                  " steps");
      by_number[place.number()] = steps[i];
    }
  }
  set_counters(by_number);
}

AdamW::Place AdamW::place_of(const ParamRef& param) const {
  const auto unit = std::find_if(units_.begin(), units_.end(), [&param](const auto& state) {
    return state->group.get() == param.group;
  });
  if (unit == units_.end()) {
    return {};
  }
  const std::vector<size_t>& indices = (*unit)->indices;
  const auto found = std::find(indices.begin(), indices.end(), param.index);
  return found == indices.end() ? Place{}
                                : Place{unit->get(), static_cast<size_t>(found - indices.begin())};
}

std::vector<LocalShard> AdamW::slices_of(at::Tensor UnitState::*tensor) const {
  std::vector<LocalShard> slices;
  for (const ParamRef& param : params_below(*root_.state())) {
    if (const Place place = place_of(param); place.unit) {
      slices.push_back(part_of(param, at::Tensor()));
      slices.back().local = place.unit->part_of(place.unit->*tensor, place.index);
    }
  }
  return slices;
}

std::vector<LocalShard> AdamW::exp_avg() const { return slices_of(&UnitState::exp_avg); }

std::vector<LocalShard> AdamW::exp_avg_sq() const { return slices_of(&UnitState::exp_avg_sq); }

}  // namespace fsdp
