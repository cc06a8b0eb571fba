#include "worker/run/optimizer_groups.h"

#include <algorithm>
#include <map>
#include <utility>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

using OptionsOfParameters = std::map<std::string, Json>;

/// Of groups as text, the options of each parameter.
OptionsOfParameters ByParameter(const std::string& text) {
  OptionsOfParameters groups;
  for (Json group : Json::parse(text, nullptr, /*allow_exceptions=*/false)) {
    if (!group.is_object() || !group.contains("params") || !group.at("params").is_array()) {
      continue;
    }
    const Json names = std::move(group.at("params"));
    group.erase("params");  // Else each of them would get a copy of all.
    for (const Json& name : names) {
      groups[name.is_string() ? name.get<std::string>() : name.dump()] = group;
    }
  }
  return groups;
}

/// Options of PyTorch's optimizers that decide what they compute, and have one value here.
constexpr std::pair<const char*, bool> kFixedOptions[] = {
    {"amsgrad", false}, {"maximize", false}, {"decoupled_weight_decay", true}};

/// Adds a line for each of these options that some parameter in both had another value of.
void DescribeOtherKind(const OptionsOfParameters& before, const OptionsOfParameters& now,
                       std::vector<std::string>& changes) {
  for (const auto& [option, ours] : kFixedOptions) {
    for (const auto& [name, current] : now) {
      const auto old = before.find(name);
      if (old != before.end() && old->second.contains(option) &&
          old->second.at(option) != Json(ours)) {
        changes.push_back("the optimizer of " + name + " had " + option + " = " +
                          Excerpt(old->second.at(option)) +
                          " at the checkpoint; fsdp-train's has " + (ours ? "true" : "false"));
        break;
      }
    }
  }
}

}  // namespace

std::unique_ptr<fsdp::AdamW> MakeOptimizer(const fsdp::FSDPModule& root,
                                           const TrainConfig::Optimizer& options) {
  const auto parameters = root.sharded_parameters();
  for (const std::string& pattern : options.no_decay) {
    const bool is_used = std::any_of(parameters.begin(), parameters.end(), [&](const auto& slice) {
      return MatchesPattern(slice.fqn, pattern);
    });
    if (!is_used) {
      throw ConfigError("configuration: optimizer.no_decay has \"" + pattern +
                        "\": expected a pattern that matches a parameter, e.g. \"" +
                        parameters.back().fqn + "\"");
    }
  }
  const fsdp::AdamWOptions defaults{options.lr, options.beta1, options.beta2, options.eps,
                                    options.weight_decay};
  return std::make_unique<fsdp::AdamW>(root, MakeParamGroups(root, options), defaults);
}

std::vector<fsdp::AdamWParamGroup> MakeParamGroups(const fsdp::FSDPModule& root,
                                                   const TrainConfig::Optimizer& options) {
  fsdp::AdamWParamGroup decayed;
  fsdp::AdamWParamGroup exempt{.params = {}, .weight_decay = 0.0};
  for (const fsdp::LocalShard& parameter : root.sharded_parameters()) {
    const bool is_exempt = std::any_of(
        options.no_decay.begin(), options.no_decay.end(),
        [&](const std::string& pattern) { return MatchesPattern(parameter.fqn, pattern); });
    (is_exempt ? exempt : decayed).params.push_back(parameter.fqn);
  }
  std::vector<fsdp::AdamWParamGroup> groups = {std::move(decayed), std::move(exempt)};
  std::erase_if(groups, [](const fsdp::AdamWParamGroup& group) { return group.params.empty(); });
  return groups;
}

std::string FormatParamGroups(const fsdp::FSDPModule& root, const TrainConfig::Optimizer& options,
                              double lr) {
  Json groups = Json::array();
  for (const fsdp::AdamWParamGroup& group : MakeParamGroups(root, options)) {
    groups.push_back({{"lr", lr},
                      {"betas", {options.beta1, options.beta2}},
                      {"eps", options.eps},
                      {"weight_decay", group.weight_decay.value_or(options.weight_decay)},
                      {"params", group.params}});
  }
  return groups.dump();
}

std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current) {
  const OptionsOfParameters before = ByParameter(stored);
  const OptionsOfParameters now = ByParameter(current);
  std::vector<std::string> changes;
  for (const char* key : {"betas", "eps", "weight_decay"}) {
    const auto changed = std::find_if(now.begin(), now.end(), [&](const auto& entry) {
      const auto old = before.find(entry.first);
      return old != before.end() && old->second.contains(key) &&
             old->second.at(key) != entry.second.at(key);
    });
    if (changed != now.end()) {
      changes.push_back("optimizer." + std::string(key) + " of " + changed->first + " was " +
                        Excerpt(before.at(changed->first).at(key)) + " at the checkpoint and is " +
                        Excerpt(changed->second.at(key)) + " now");
    }
  }
  DescribeOtherKind(before, now, changes);
  return changes;
}

}  // namespace fsdprun::worker
