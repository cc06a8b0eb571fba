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
  return steps_by_param(root_, list_of(units_), updates_done());
}

void AdamW::set_parameter_steps(const std::vector<int64_t>& steps) {
  set_counters(steps_by_number("AdamW", root_, list_of(units_), steps));
}

std::vector<LocalShard> AdamW::slices_of(at::Tensor UnitState::*tensor) const {
  std::vector<LocalShard> slices;
  const UnitList units = list_of(units_);
  for (const ParamRef& param : params_below(*root_.state())) {
    if (const ParamPlace place = place_of(units, param); place.unit != nullptr) {
      slices.push_back(part_of(param, at::Tensor()));
      const at::Tensor& flat = static_cast<const UnitState*>(place.unit)->*tensor;
      slices.back().local = place.unit->part_of(flat, place.index);
    }
  }
  return slices;
}

std::vector<LocalShard> AdamW::exp_avg() const { return slices_of(&UnitState::exp_avg); }

std::vector<LocalShard> AdamW::exp_avg_sq() const { return slices_of(&UnitState::exp_avg_sq); }

}  // namespace fsdp
