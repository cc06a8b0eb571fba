#include "fsdp_runtime/src/state_dict/model_load.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "fsdp_runtime/src/state_dict/texts.h"

namespace fsdp {

uint64_t digest_of(const std::vector<NamedTensor>& tensors) {
  TextDigest digest;
  for (const NamedTensor& named : tensors) {
    digest.mix(named.name);
    digest.mix(named.dtype());
    digest.mix(named.tensor.dim());
    for (const int64_t size : named.tensor.sizes()) {
      digest.mix(size);
    }
  }
  return digest.value();
}

LoadItem ModelLoad::item_for(const NamedTensor& named, const StateValue* source) const {
  return {named.name, named.dtype(), view_of(named), source};
}

std::string ModelLoad::plan(const ModelStateDict& dict) {
  std::vector<std::string> problems;
  std::set<std::string> names;
  // Looked up only, never iterated. Of a tensor with several names, that counts which is the last
  // in the model of those that the dict has.
  std::unordered_map<const c10::TensorImpl*, size_t> item_of;
  for (const NamedTensor& named : tensors_) {
    names.insert(named.name);
    const StateValue* source = dict.find(named.name);
    if (source == nullptr) {
      if (!options_.ignore_frozen_params || !named.is_frozen()) {
        keys_.missing_keys.push_back(named.name);
      }
      continue;
    }
    const LoadItem item = item_for(named, source);
    if (options_.broadcast_from_rank0 && std::holds_alternative<LocalShard>(*source)) {
      problems.push_back(named.name + ": a shard; broadcast_from_rank0 sends whole tensors");
    } else if (std::string problem = mismatch_of(item); !problem.empty()) {
      problems.push_back(std::move(problem));
    }
    const auto [found, is_new] =
        item_of.try_emplace(named.tensor.unsafeGetTensorImpl(), items_.size());
    if (is_new) {
      items_.push_back(item);
    } else {
      items_[found->second] = item;
    }
  }
  for (const auto& entry : dict) {
    if (names.count(entry.key()) == 0) {
      keys_.unexpected_keys.push_back(entry.key());
    }
  }
  if (options_.strict) {
    add_keys(problems, "missing key(s) in the dict", keys_.missing_keys);
    add_keys(problems, "unexpected key(s) in the dict", keys_.unexpected_keys);
  }
  return joined(problems);
}

uint64_t ModelLoad::digest() const {
  TextDigest digest;
  for (const LoadItem& item : items_) {
    digest.mix(item.key);
  }
  return digest.value();
}

void ModelLoad::take_plan_of_first(const ModelRanks& ranks) {
  nlohmann::json plan =
      nlohmann::json::array({nlohmann::json::array(), keys_.missing_keys, keys_.unexpected_keys});
  for (const LoadItem& item : items_) {
    plan[0].push_back(item.key);
  }
  const std::string text = ranks.text_of_first(packed(plan));
  if (ranks.is_first()) {
    return;
  }
  plan = unpacked(text);
  keys_ = {plan[1].get<std::vector<std::string>>(), plan[2].get<std::vector<std::string>>()};
  // The first rank's order is that of the first name of each tensor, its keys are the last names.
  std::unordered_map<std::string, const NamedTensor*> by_name;  // looked up only, never iterated
  for (const NamedTensor& named : tensors_) {
    by_name.emplace(named.name, &named);
  }
  items_.clear();
  for (const nlohmann::json& key : plan[0]) {
    items_.push_back(item_for(*by_name.at(key.get<std::string>()), nullptr));
  }
}

void ModelLoad::write(const ModelRanks& ranks) const {
  if (options_.broadcast_from_rank0) {
    load_from_first(items_, ranks);
  } else {
    load_own(items_);
  }
}

}  // namespace fsdp
