#include "fsdp_runtime/src/state_dict/optimizer_load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "fsdp_runtime/src/engine/param_group.h"
#include "fsdp_runtime/src/state_dict/option_json.h"
#include "fsdp_runtime/src/state_dict/texts.h"

namespace fsdp {

uint64_t digest_of(const OptimizerAccess& optimizer) {
  TextDigest digest;
  digest.mix(optimizer.type());
  for (const OptimizerParamGroup& group : optimizer.groups()) {
    digest.mix(group.params.size());
    for (const std::string& fqn : group.params) {
      digest.mix(fqn);
    }
  }
  return digest.value();
}

OptimizerLoad::OptimizerLoad(OptimizerAccess& optimizer, const std::vector<ParamRef>& params,
                             const StateDictOptions& options)
    : optimizer_(optimizer), options_(options), groups_(optimizer.groups()) {
  for (const ParamRef& param : params) {
    params_.emplace(param.fqn, param);
  }
}

std::string OptimizerLoad::plan(const OptimizerStateDict& dict) {
  for (const OptimizerParamGroup& group : dict.param_groups) {
    for (const std::string& fqn : group.params) {
      group_with_.emplace(fqn, &group);
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    plan_group(g, dict);
  }
  if (options_.strict) {
    add_keys(problems_, "no group of the optimizer's dict has parameter(s)", missing_);
    check_unexpected(dict);
  }
  if (std::string problem = problem_of_kept(); !problem.empty()) {
    problems_.push_back(std::move(problem));
  }
  return joined(problems_);
}

std::string OptimizerLoad::problem_of_kept() const {
  const auto kept = std::find_if(states_.begin(), states_.end(),
                                 [](const NewState& state) { return state.is_kept; });
  const std::string problem = kept != states_.end() ? optimizer_.problem_of_keeping() : "";
  return problem.empty() ? "" : kept->fqn + ", which the dict has not, cannot stay: " + problem;
}

const OptimizerParamGroup* OptimizerLoad::group_of_dict(size_t number) {
  const OptimizerParamGroup* found = nullptr;
  for (const std::string& fqn : groups_[number].params) {
    const auto group = group_with_.find(fqn);
    if (group == group_with_.end()) {
      missing_.push_back(fqn);
    } else if (found == nullptr) {
      found = group->second;
    } else if (found != group->second) {
      problems_.push_back("group " + std::to_string(number) +
                          " of the optimizer has parameters of several groups of the dict, " +
                          found->params.front() + " and " + fqn +
                          " for two; give the optimizer the groups that the dict has");
      break;
    }
  }
  return found;
}

void OptimizerLoad::plan_group(size_t number, const OptimizerStateDict& dict) {
  const OptimizerParamGroup* group = group_of_dict(number);
  const OptionValues& options =
      new_options_.emplace_back(group != nullptr ? group->options : OptionValues());
  if (const std::string problem = optimizer_.option_problem(number, options, options_.strict);
      !problem.empty()) {
    problems_.push_back("group " + std::to_string(number) + " of the " + optimizer_.type() + ": " +
                        problem);
  }
  for (const std::string& fqn : groups_[number].params) {
    const bool is_named = group_with_.count(fqn) != 0;
    const Entries* entries = is_named ? dict.state.find(fqn) : nullptr;
    if (entries != nullptr && optimizer_.can_have_state(fqn)) {
      plan_state(number, fqn, *entries);
      continue;
    }
    states_.push_back({.fqn = fqn, .is_kept = !is_named});
    if (entries != nullptr && options_.strict) {
      problems_.push_back(fqn + ": the dict has a state of it, but it is frozen");
    }
  }
}

void OptimizerLoad::plan_state(size_t group, const std::string& fqn, const Entries& entries) {
  NewState& state = states_.emplace_back(NewState{.fqn = fqn});
  const std::vector<std::string> known = optimizer_.state_names();
  for (const auto& entry : entries) {
    const auto* whole = std::get_if<at::Tensor>(&entry.value());
    if (whole != nullptr && !whole->defined()) {
      continue;  // Python's None: there is none
    }
    if (entry.key() == "step" && optimizer_.counts_steps()) {
      plan_step(state, entry.value());
    } else if (std::find(known.begin(), known.end(), entry.key()) != known.end()) {
      plan_tensor(state, entry.key(), entry.value());
    } else {
      problems_.push_back(fqn + ": a " + optimizer_.type() + " has no state " + entry.key());
    }
  }
  state.is_there = state.step.has_value() || !state.tensors.empty();
  if (!state.is_there) {
    return;
  }
  if (optimizer_.counts_steps() && !state.step) {
    problems_.push_back(fqn + ": the dict has no step of it");
  }
  for (const std::string& name : known) {
    const bool is_there =
        std::find(state.tensors.begin(), state.tensors.end(), name) != state.tensors.end();
    if (!is_there && optimizer_.needs(name, group, new_options_[group])) {
      problems_.push_back(fqn + ": the dict has no " + name + " of it");
    }
  }
}

void OptimizerLoad::plan_step(NewState& state, const StateValue& value) {
  const auto* step = std::get_if<at::Tensor>(&value);
  const double count = step != nullptr && step->numel() == 1 ? step->item().to<double>() : -1.0;
  if (count < 0 || count != std::floor(count) || count > 9e15) {
    problems_.push_back(state.fqn + ": its step is not one whole number");
  } else {
    state.step = static_cast<int64_t>(count);
  }
}

LoadItem OptimizerLoad::item_for(const std::string& fqn, const std::string& name,
                                 const StateValue* source) const {
  const ParamRef& param = params_.at(fqn);
  const ShardStore& store = param.group->store();
  return {fqn + "." + name, store.dtype(), part_of(param, at::Tensor()), source};
}

void OptimizerLoad::plan_tensor(NewState& state, const std::string& name, const StateValue& value) {
  const LoadItem item = item_for(state.fqn, name, &value);
  if (options_.broadcast_from_rank0 && std::holds_alternative<LocalShard>(value)) {
    problems_.push_back(item.key + ": a shard; broadcast_from_rank0 sends whole tensors");
  } else if (std::string problem = mismatch_of(item); !problem.empty()) {
    problems_.push_back(std::move(problem));
  }
  state.tensors.push_back(name);
  sources_.push_back(&value);
}

void OptimizerLoad::check_unexpected(const OptimizerStateDict& dict) {
  std::set<std::string> own;
  for (const OptimizerParamGroup& group : groups_) {
    own.insert(group.params.begin(), group.params.end());
  }
  std::vector<std::string> unexpected;
  for (const auto& entry : dict.state) {
    if (own.count(entry.key()) == 0) {
      unexpected.push_back(entry.key());
    }
  }
  add_keys(problems_, "the optimizer has no parameter(s)", unexpected);
}

uint64_t OptimizerLoad::digest() const {
  TextDigest digest;
  for (const NewState& state : states_) {
    digest.mix(state.fqn);
    digest.mix(state.is_kept);
    digest.mix(state.is_there);
    digest.mix(state.step.value_or(-1));
    for (const std::string& name : state.tensors) {
      digest.mix(name);
    }
  }
  for (const OptionValues& options : new_options_) {
    digest.mix(json_of(options).dump());
  }
  return digest.value();
}

void OptimizerLoad::take_plan_of_first(const ModelRanks& ranks) {
  using nlohmann::json;
  json plan = {{"states", json::array()}, {"options", json::array()}};
  for (const NewState& state : states_) {
    plan["states"].push_back(json::array({state.fqn, state.is_kept, state.is_there,
                                          state.step ? json(*state.step) : json(), state.tensors}));
  }
  for (const OptionValues& options : new_options_) {
    plan["options"].push_back(json_of(options));
  }
  const std::string text = ranks.text_of_first(packed(plan));
  if (ranks.is_first()) {
    return;
  }
  plan = unpacked(text);
  states_.clear();
  new_options_.clear();
  for (const json& state : plan["states"]) {
    states_.push_back({state[0].get<std::string>(), state[1].get<bool>(), state[2].get<bool>(),
                       state[3].is_null() ? std::nullopt : std::optional(state[3].get<int64_t>()),
                       state[4].get<std::vector<std::string>>()});
    sources_.resize(sources_.size() + states_.back().tensors.size(), nullptr);
  }
  for (const json& options : plan["options"]) {
    new_options_.push_back(options_of_json(options));
  }
}

void OptimizerLoad::write(const ModelRanks& ranks) {
  const std::vector<std::vector<at::Tensor>> targets = optimizer_.begin_load(states_);
  std::vector<LoadItem> items;
  for (size_t i = 0; i < states_.size(); ++i) {
    for (size_t t = 0; t < states_[i].tensors.size(); ++t) {
      LoadItem item = item_for(states_[i].fqn, states_[i].tensors[t], sources_[items.size()]);
      std::get<LocalShard>(item.target).local = targets[i][t];
      items.push_back(std::move(item));
    }
  }
  if (options_.broadcast_from_rank0) {
    load_from_first(items, ranks);
  } else {
    load_own(items);
  }
  optimizer_.end_load(states_, new_options_);
}

}  // namespace fsdp
