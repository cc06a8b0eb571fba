#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include <algorithm>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/optim/adamw_kernel.h"
#include "fsdp_runtime/src/optim/adamw_state.h"
#include "fsdp_runtime/src/optim/param_groups.h"
#include "fsdp_runtime/src/optim/step_counters.h"

namespace fsdp {

/// What a step updates. Made when other parameters than in the last step have a gradient, and used
/// until that happens again.
struct AdamW::Updates {
  Participation participation;
  std::vector<at::Tensor> counters;  // of the parameters that take part
  std::vector<AdamWList> lists;
};

namespace {

AdamWList& list_for(std::vector<AdamWList>& lists, at::ScalarType dtype, size_t param_group) {
  const auto found = std::find_if(lists.begin(), lists.end(), [=](const AdamWList& list) {
    return list.dtype() == dtype && list.param_group() == param_group;
  });
  return found == lists.end() ? lists.emplace_back(dtype, param_group) : *found;
}

std::vector<AdamWParamGroup> all_in_one_group(const FSDPModule& root) {
  TORCH_CHECK(root, "AdamW: empty FSDPModule handle; pass what fully_shard returned for the root");
  AdamWParamGroup group;
  for (const ParamRef& param : params_below(*root.state())) {
    group.params.push_back(param.fqn);
  }
  return {group};
}

}  // namespace

AdamW::AdamW(const FSDPModule& root, const AdamWOptions& options)
    : AdamW(root, all_in_one_group(root), options) {}

AdamW::AdamW(FSDPModule root, const std::vector<AdamWParamGroup>& groups,
             const AdamWOptions& defaults)
    : root_(std::move(root)) {
  TORCH_CHECK(root_, "AdamW: empty FSDPModule handle; pass what fully_shard returned for the root");
  at::NoGradGuard no_grad;
  const std::vector<ParamRef> params = params_below(*root_.state());
  std::vector<std::string> fqns;
  for (const ParamRef& param : params) {
    fqns.push_back(param.fqn);
  }
  ResolvedParamGroups resolved = resolve_param_groups(groups, defaults, fqns);
  options_ = std::move(resolved.options);
  params_ = names_of(groups);
  for (const FSDPModule& unit : root_.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      if (group->is_trainable()) {
        add_unit_group(group, params, resolved.group_of);
      }
    }
  }
  if (!units_.empty()) {
    const c10::Device device = one_device("AdamW", list_of(units_));
    counters_.push_back(zero_counter(device));
    for (const AdamWOptions& options : options_) {
      lrs_.push_back(
          at::full({}, options.lr, at::TensorOptions().dtype(at::kFloat).device(device)));
    }
  }
}

const AdamWOptions& AdamW::options(size_t group) const {
  check_group(group);
  return options_[group];
}

const std::vector<std::string>& AdamW::params(size_t group) const {
  check_group(group);
  return params_[group];
}

void AdamW::set_options(size_t group, const AdamWOptions& options) {
  check_group(group);
  check_options(group, options);
  options_[group] = options;
  if (!lrs_.empty()) {
    lrs_[group].fill_(options.lr);
  }
}

void AdamW::set_lr(size_t group, double lr) {
  AdamWOptions options = this->options(group);
  options.lr = lr;
  set_options(group, options);
}

void AdamW::set_lr(double lr) {
  for (size_t group = 0; group < options_.size(); ++group) {
    set_lr(group, lr);
  }
}

void AdamW::check_group(size_t group) const {
  TORCH_CHECK(group < options_.size(), "AdamW: there is no param group ", group,
              "; they are counted from 0, and there are ", options_.size());
}

void AdamW::list_unit(const UnitState& state, Updates& updates) {
  const auto takes_part = [&](size_t p) {
    return updates.participation.takes_part[state.first + p] != 0;
  };
  const auto counter = [&](size_t p) { return counter_of_[state.first + p]; };
  const std::vector<UnitState::Param>& params = state.params;
  size_t next = 0;
  while (next < params.size()) {
    const size_t p = next++;
    if (!takes_part(p)) {
      continue;
    }
    // Neighbours that are updated alike become one part.
    while (next < params.size() && takes_part(next) && counter(next) == counter(p) &&
           params[next].param_group == params[p].param_group &&
           params[next].segment.begin == params[next - 1].segment.end) {
      ++next;
    }
    const int64_t begin = params[p].segment.begin;
    const int64_t numel = params[next - 1].segment.end - begin;
    const int64_t state_begin = params[p].state_begin;
    if (numel > 0) {
      const at::Tensor& shard = state.group->store().shard();
      const at::Tensor copy = state.group->store().copy_for_peers();
      list_for(updates.lists, shard.scalar_type(), params[p].param_group)
          .add({shard.narrow(0, begin, numel), state.group->gradient().narrow(0, begin, numel),
                state.exp_avg.narrow(0, state_begin, numel),
                state.exp_avg_sq.narrow(0, state_begin, numel), counters_[counter(p)],
                copy.defined() ? copy.narrow(0, begin, numel) : at::Tensor()});
    }
  }
}

void AdamW::renew_updates() {
  updates_.reset();
  updates_ = make_updates(units_);
}

std::shared_ptr<AdamW::Updates> AdamW::make_updates(
    const std::vector<std::shared_ptr<UnitState>>& units) {
  auto updates = std::make_shared<Updates>();
  updates->participation = participation_of(list_of(units), counter_of_.size());
  const std::vector<uint8_t>& takes_part = updates->participation.takes_part;
  std::vector<size_t> counter_of = counter_of_;
  std::vector<at::Tensor> counters = counters_;
  for (const size_t from : split_counters(counter_of, takes_part, counters.size())) {
    counters.push_back(counters[from].clone());
  }
  counter_of_ = std::move(counter_of);
  counters_ = std::move(counters);
  std::vector<bool> counts(counters_.size());
  for (size_t i = 0; i < counter_of_.size(); ++i) {
    if (takes_part[i] != 0 && !counts[counter_of_[i]]) {
      counts[counter_of_[i]] = true;
      updates->counters.push_back(counters_[counter_of_[i]]);
    }
  }
  for (const std::shared_ptr<UnitState>& state : units) {
    list_unit(*state, *updates);
  }
  return updates;
}

void AdamW::check_whole() const { fsdp::check_whole("AdamW", is_torn_); }

void AdamW::check_scaling(const GradScaling& scaling) const {
  const auto check = [this](const char* name, const at::Tensor& value) {
    TORCH_CHECK(!value.defined() || lrs_.empty() ||
                    (value.numel() == 1 && value.scalar_type() == at::kFloat &&
                     value.device() == lrs_.front().device()),
                "AdamW: ", name, " is a tensor of ", value.sizes(), ", ", value.scalar_type(),
                " on ", value.device(), "; expected one element, Float, on ",
                lrs_.front().device());
  };
  check("grad_scale", scaling.grad_scale);
  check("found_inf", scaling.found_inf);
}

void AdamW::step(const GradScaling& scaling) { step(scaling, /*inv_scale=*/1); }

void AdamW::step(const GradScaling& scaling, double inv_scale) {
  check_whole();
  check_scaling(scaling);
  if (scaling.grad_scale.defined() || scaling.found_inf.defined() || inv_scale != 1) {
    check_steps_behind_backward();
  }
  at::NoGradGuard no_grad;
  const UnitList units = list_of(units_);
  settle_gradients(units);
  if (scaling.found_inf.defined() && scaling.found_inf.is_cpu() &&
      scaling.found_inf.item<float>() != 0) {
    return;
  }
  begin_update(root_);
  if (!updates_ || !is_current(updates_->participation, units)) {
    renew_updates();
  }
  is_torn_ = true;
  update(*updates_, scaling, inv_scale);
  end_update(root_);
  is_torn_ = false;
}

void AdamW::update(Updates& updates, const GradScaling& scaling, double inv_scale) {
  if (updates.counters.empty()) {
    return;
  }
  if (lrs_.front().is_cpu()) {
    at::_foreach_add_(updates.counters, 1);
    const double divisor = scaling.grad_scale.defined() ? scaling.grad_scale.item<float>() : 1.0;
    for (AdamWList& list : updates.lists) {
      const AdamWOptions& options = options_[list.param_group()];
      if (options.fused) {
        list.apply_in_one_pass(options, {divisor, inv_scale});
      } else {
        list.apply_in_pieces(options, {divisor, inv_scale});
      }
    }
    return;
  }
  const FusedScaling fused(scaling);
  fused.count(updates.counters);
  for (AdamWList& list : updates.lists) {
    list.apply_fused(options_[list.param_group()], lrs_[list.param_group()], fused);
  }
}

void AdamW::zero_grad() { drop_gradients(list_of(units_)); }

}  // namespace fsdp
