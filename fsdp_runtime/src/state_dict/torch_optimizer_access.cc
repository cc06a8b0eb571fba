#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <typeinfo>
#include <unordered_map>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/state_dict/optimizer_access.h"
#include "fsdp_runtime/src/state_dict/torch_optimizer_kinds.h"

namespace fsdp {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

const TorchOptimizerKind& checked_kind_of(const torch::optim::Optimizer& optimizer) {
  const TorchOptimizerKind* kind = kind_of(optimizer);
  TORCH_CHECK(
      kind != nullptr, "an optimizer of type ", c10::demangle(typeid(optimizer).name()),
      ", whose state is not known here; fsdp::AdamW, or SGD, Adam, AdamW, RMSprop or "
      "Adagrad of torch::optim expected: store the state of another one with its own save()");
  return *kind;
}

class TorchOptimizerAccess : public OptimizerAccess {
 public:
  TorchOptimizerAccess(torch::optim::Optimizer& optimizer, const std::vector<ParamRef>& params)
      : optimizer_(optimizer), kind_(checked_kind_of(optimizer)) {
    std::unordered_map<const c10::TensorImpl*, std::string>
        names;  // looked up only, never iterated
    for (const ParamRef& param : params) {
      names.emplace(param.group->leaves()[param.index].unsafeGetTensorImpl(), param.fqn);
    }
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      std::vector<std::string>& fqns = fqns_.emplace_back();
      for (const at::Tensor& leaf : optimizer_.param_groups()[g].params()) {
        const auto found = names.find(leaf.unsafeGetTensorImpl());
        TORCH_CHECK(found != names.end(), "parameter ", fqns.size(), " of group ", g, " of the ",
                    kind_.type(),
                    " is none of this model's; make the optimizer with what "
                    "FSDPModule::parameters() of the same model returns");
        fqns.push_back(found->second);
        places_.emplace(found->second, ParameterPlace{g, leaf});
      }
    }
  }

  std::string type() const override { return kind_.type(); }

  std::vector<OptimizerParamGroup> groups() const override {
    std::vector<OptimizerParamGroup> groups;
    for (size_t g = 0; g < fqns_.size(); ++g) {
      groups.push_back({fqns_[g], kind_.options_of(options_of_group(g))});
    }
    return groups;
  }

  bool can_have_state(const std::string& /*fqn*/) const override { return true; }

  std::optional<ParamState> state_of(const std::string& fqn) const override {
    const auto found = optimizer_.state().find(key_of(fqn));
    if (found == optimizer_.state().end() || found->second == nullptr) {
      return std::nullopt;
    }
    TORCH_CHECK(kind_.has_type_of(*found->second), "the state of ", fqn, " is not that of a ",
                kind_.type(),
                "; the state of an optimizer that is derived from it is not known here");
    ParamState state;
    if (const int64_t* step = kind_.step_of(*found->second)) {
      state.step = *step;
    }
    const std::vector<std::string> names = kind_.state_names();
    const std::vector<at::Tensor*> tensors = kind_.tensors_of(*found->second);
    for (size_t i = 0; i < names.size(); ++i) {
      if (tensors[i]->defined()) {
        state.tensors.emplace_back(names[i], tensors[i]->reshape({-1}));
      }
    }
    return state;
  }

  std::vector<std::string> state_names() const override { return kind_.state_names(); }
  bool counts_steps() const override { return kind_.step_of(*kind_.make_state()) != nullptr; }

  bool needs(const std::string& state_name, size_t group,
             const OptionValues& options) const override {
    const std::unique_ptr<OptimizerOptions> changed = options_of_group(group).clone();
    kind_.set_options(*changed, options, /*strict=*/false);
    return kind_.needs(state_name, *changed);
  }

  std::string option_problem(size_t group, const OptionValues& options,
                             bool strict) const override {
    return kind_.set_options(*options_of_group(group).clone(), options, strict);
  }

  std::string problem_of_keeping() const override { return ""; }

  std::vector<std::vector<at::Tensor>> begin_load(const std::vector<NewState>& states) override {
    const std::vector<std::string> names = kind_.state_names();
    std::vector<std::vector<at::Tensor>> targets;
    for (const NewState& state : states) {
      targets.emplace_back();
      if (state.is_kept || !state.is_there) {
        continue;
      }
      std::unique_ptr<OptimizerParamState> made = kind_.make_state();
      if (int64_t* step = kind_.step_of(*made)) {
        *step = state.step.value_or(0);
      }
      for (const std::string& name : state.tensors) {
        const auto place = std::find(names.begin(), names.end(), name) - names.begin();
        at::Tensor& tensor = *kind_.tensors_of(*made)[static_cast<size_t>(place)];
        tensor = at::empty_like(places_.at(state.fqn).leaf.detach());
        targets.back().push_back(tensor.view({-1}));
      }
      made_.emplace(state.fqn, std::move(made));
    }
    return targets;
  }

  void end_load(const std::vector<NewState>& states,
                const std::vector<OptionValues>& options) override {
    for (size_t g = 0; g < options.size(); ++g) {
      kind_.set_options(optimizer_.param_groups()[g].options(), options[g], /*strict=*/false);
    }
    for (const NewState& state : states) {
      if (state.is_kept) {
        continue;
      }
      const ParameterPlace& place = places_.at(state.fqn);
      std::unique_ptr<OptimizerParamState> made =
          state.is_there ? std::move(made_.at(state.fqn))
                         : kind_.initial_state(place.leaf.detach(), options_of_group(place.group));
      if (made != nullptr) {
        optimizer_.state()[key_of(state.fqn)] = std::move(made);
      } else {
        optimizer_.state().erase(key_of(state.fqn));
      }
    }
    made_.clear();
  }

 private:
  struct ParameterPlace {
    size_t group = 0;
    at::Tensor leaf;
  };

  const OptimizerOptions& options_of_group(size_t group) const {
    return std::as_const(optimizer_).param_groups()[group].options();
  }
  void* key_of(const std::string& fqn) const { return places_.at(fqn).leaf.unsafeGetTensorImpl(); }

  torch::optim::Optimizer& optimizer_;
  const TorchOptimizerKind& kind_;
  std::vector<std::vector<std::string>> fqns_;  // by group
  // Looked up only, never iterated.
  std::unordered_map<std::string, ParameterPlace> places_;
  std::unordered_map<std::string, std::unique_ptr<OptimizerParamState>> made_;  // not in place yet
};

}  // namespace

std::unique_ptr<OptimizerAccess> access_to(torch::optim::Optimizer& optimizer,
                                           const std::vector<ParamRef>& params) {
  return std::make_unique<TorchOptimizerAccess>(optimizer, params);
}

}  // namespace fsdp
