#include <ATen/ATen.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/state_dict/optimizer_access.h"
#include "fsdp_runtime/src/state_dict/option_table.h"

namespace fsdp {
namespace {

const std::vector<OptionEntry<AdamWOptions>>& adamw_options() {
  using O = AdamWOptions;
  const auto number = [](std::string name, double O::*field) -> OptionEntry<O> {
    return {std::move(name), [field](const O& options) { return options.*field; },
            [field](O& options, const OptionValue& value) { options.*field = number_of(value); }};
  };
  static const std::vector<OptionEntry<O>> kTable = {
      number("lr", &O::lr),
      {"betas",
       [](const O& options) {
         return std::vector<double>{options.beta1, options.beta2};
       },
       [](O& options, const OptionValue& value) {
         std::tie(options.beta1, options.beta2) = betas_of(value);
       }},
      number("eps", &O::eps),
      number("weight_decay", &O::weight_decay),
      fixed_option<O>("amsgrad", false),
      fixed_option<O>("maximize", false),
      fixed_option<O>("decoupled_weight_decay", true),
  };
  return kTable;
}

class AdamWAccess : public OptimizerAccess {
 public:
  AdamWAccess(AdamW& optimizer, const std::vector<ParamRef>& params)
      : optimizer_(optimizer), exp_avg_(optimizer.exp_avg()), exp_avg_sq_(optimizer.exp_avg_sq()) {
    for (size_t i = 0; i < params.size(); ++i) {
      number_of_.emplace(params[i].fqn, i);
    }
    for (size_t i = 0; i < exp_avg_.size(); ++i) {
      const LocalShard& part = exp_avg_[i];
      const auto found = number_of_.find(part.fqn);
      TORCH_CHECK(
          found != number_of_.end() &&
              params[found->second].group->store().held(params[found->second].index).boxes ==
                  part.boxes,
          "the optimizer has ", part.fqn, " of shape ", at::IntArrayRef(part.global_shape),
          ", which the model has not; pass the model whose handle AdamW was made with");
      state_of_.emplace(part.fqn, i);
    }
  }

  std::string type() const override { return "fsdp::AdamW"; }

  std::vector<OptimizerParamGroup> groups() const override {
    std::vector<OptimizerParamGroup> groups;
    for (size_t g = 0; g < optimizer_.group_count(); ++g) {
      groups.push_back({optimizer_.params(g), options_of(adamw_options(), optimizer_.options(g))});
    }
    return groups;
  }

  bool can_have_state(const std::string& fqn) const override { return state_of_.count(fqn) != 0; }

  std::optional<ParamState> state_of(const std::string& fqn) const override {
    if (!can_have_state(fqn)) {
      return std::nullopt;
    }
    if (steps_.empty()) {
      steps_ = optimizer_.parameter_steps();
    }
    const int64_t step = steps_[number_of_.at(fqn)];
    const size_t i = state_of_.at(fqn);
    return step == 0
               ? std::nullopt
               : std::make_optional(ParamState{
                     step, {{"exp_avg", exp_avg_[i].local}, {"exp_avg_sq", exp_avg_sq_[i].local}}});
  }

  std::vector<std::string> state_names() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool counts_steps() const override { return true; }
  bool needs(const std::string& /*name*/, size_t /*group*/,
             const OptionValues& /*options*/) const override {
    return true;
  }

  std::string option_problem(size_t group, const OptionValues& options,
                             bool strict) const override {
    AdamWOptions changed = optimizer_.options(group);
    return set_options_of(adamw_options(), changed, options, strict);
  }

  std::string problem_of_keeping() const override {
    try {
      optimizer_.parameter_steps();
      return "";
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
  }

  std::vector<std::vector<at::Tensor>> begin_load(const std::vector<NewState>& states) override {
    std::vector<std::vector<at::Tensor>> targets;
    for (const NewState& state : states) {
      std::vector<at::Tensor>& tensors = targets.emplace_back();
      if (!can_have_state(state.fqn)) {
        continue;
      }
      const size_t i = state_of_.at(state.fqn);
      for (const std::string& name : state.tensors) {
        tensors.push_back(name == "exp_avg" ? exp_avg_[i].local : exp_avg_sq_[i].local);
      }
      if (!state.is_kept && !state.is_there) {
        exp_avg_[i].local.zero_();
        exp_avg_sq_[i].local.zero_();
      }
    }
    return targets;
  }

  void end_load(const std::vector<NewState>& states,
                const std::vector<OptionValues>& options) override {
    const bool keeps_some = std::any_of(states.begin(), states.end(),
                                        [](const NewState& state) { return state.is_kept; });
    std::vector<int64_t> steps =
        keeps_some ? optimizer_.parameter_steps() : std::vector<int64_t>(number_of_.size(), 0);
    for (const NewState& state : states) {
      if (!state.is_kept) {
        steps[number_of_.at(state.fqn)] = state.step.value_or(0);
      }
    }
    optimizer_.set_parameter_steps(steps);
    for (size_t g = 0; g < options.size(); ++g) {
      AdamWOptions changed = optimizer_.options(g);
      set_options_of(adamw_options(), changed, options[g], /*strict=*/false);
      optimizer_.set_options(g, changed);
    }
  }

 private:
  AdamW& optimizer_;
  const std::vector<LocalShard> exp_avg_;
  const std::vector<LocalShard> exp_avg_sq_;
  // Looked up only, never iterated.
  std::unordered_map<std::string, size_t> number_of_;  // of a parameter of the model
  std::unordered_map<std::string, size_t> state_of_;   // where a parameter is in exp_avg_
  mutable std::vector<int64_t> steps_;                 // by number; empty: not asked for yet
};

}  // namespace

std::unique_ptr<OptimizerAccess> access_to(AdamW& optimizer, const std::vector<ParamRef>& params) {
  return std::make_unique<AdamWAccess>(optimizer, params);
}

}  // namespace fsdp
