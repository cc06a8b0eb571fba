#include "worker/run/optimizer_groups.h"

#include <fsdp/muon.h>

#include <algorithm>
#include <map>
#include <sstream>
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

/// Those whose names are ours, too.
constexpr const char* kComparedOptions[] = {"betas",    "eps",         "weight_decay",
                                            "momentum", "dampening",   "nesterov",
                                            "ns_steps", "adjust_lr_fn"};

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

bool MatchesSome(const std::string& name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&name](const std::string& pattern) { return MatchesPattern(name, pattern); });
}

void CheckPatterns(const std::vector<fsdp::LocalShard>& parameters,
                   const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const bool is_used = std::any_of(parameters.begin(), parameters.end(), [&](const auto& slice) {
      return MatchesPattern(slice.fqn, pattern);
    });
    if (!is_used) {
      throw ConfigError("configuration: optimizer.no_decay has \"" + pattern +
                        "\": expected a pattern that matches a parameter, e.g. \"" +
                        parameters.back().fqn + "\"");
    }
  }
}

OptimizerKind KindOf(const fsdp::Shard& parameter, const TrainConfig::Optimizer& options) {
  if (options.name == "sgd") {
    return OptimizerKind::kSgd;
  }
  return options.name == "muon" && IsMatrixOfBlock(parameter) ? OptimizerKind::kMuon
                                                              : OptimizerKind::kAdamW;
}

/// All but the names and what groups of a kind may differ in.
Json OptionsOf(OptimizerKind kind, const TrainConfig::Optimizer& options) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return {{"momentum", options.momentum},
              {"dampening", options.dampening},
              {"nesterov", options.nesterov},
              {"maximize", false}};
    case OptimizerKind::kMuon:
      return {{"momentum", options.momentum},
              {"nesterov", options.nesterov},
              {"ns_coefficients", fsdp::MuonOptions().ns_coefficients},
              {"eps", fsdp::MuonOptions().eps},
              {"ns_steps", options.ns_steps},
              {"adjust_lr_fn", options.adjust_lr_fn}};
    case OptimizerKind::kAdamW:
      break;
  }
  return {{"betas", {options.beta1, options.beta2}}, {"eps", options.eps}};
}

}  // namespace

bool IsMatrixOfBlock(const fsdp::Shard& parameter) {
  if (parameter.global_shape.size() != 2) {
    return false;
  }
  std::istringstream parts(parameter.fqn);
  for (std::string part; std::getline(parts, part, '.');) {
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) {
      return true;
    }
  }
  return false;
}

std::vector<OptimizerGroup> GroupParameters(const std::vector<fsdp::LocalShard>& parameters,
                                            const TrainConfig::Optimizer& options,
                                            const std::set<std::string>& frozen) {
  CheckPatterns(parameters, options.no_decay);
  std::vector<OptimizerGroup> groups;
  for (const OptimizerKind kind :
       {OptimizerKind::kMuon, OptimizerKind::kSgd, OptimizerKind::kAdamW}) {
    const bool is_rest = options.name == "muon" && kind == OptimizerKind::kAdamW;
    const double rate = is_rest ? options.adamw_lr : options.lr;
    OptimizerGroup decayed{kind, {}, rate, options.weight_decay};
    OptimizerGroup exempt{kind, {}, rate, 0.0};
    for (const fsdp::LocalShard& parameter : parameters) {
      if (!frozen.contains(parameter.fqn) && KindOf(parameter, options) == kind) {
        (MatchesSome(parameter.fqn, options.no_decay) ? exempt : decayed)
            .params.push_back(parameter.fqn);
      }
    }
    groups.push_back(std::move(decayed));
    groups.push_back(std::move(exempt));
  }
  std::erase_if(groups, [](const OptimizerGroup& group) { return group.params.empty(); });
  if (options.name == "muon" && groups.front().kind != OptimizerKind::kMuon) {
    throw ConfigError(
        "configuration: optimizer.name = \"muon\": expected a model whose blocks have matrices "
        "that are trained; set it to adamw");
  }
  return groups;
}

std::string FormatParamGroups(const ShardedModel& model, const TrainConfig::Optimizer& options,
                              double factor) {
  Json groups = Json::array();
  for (const OptimizerGroup& group :
       GroupParameters(model.root.sharded_parameters(), options, model.frozen)) {
    Json formatted = {{"lr", group.rate * factor}};
    formatted.update(OptionsOf(group.kind, options));
    formatted["weight_decay"] = group.weight_decay;
    formatted["params"] = group.params;
    groups.push_back(std::move(formatted));
  }
  return groups.dump();
}

std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current) {
  const OptionsOfParameters before = ByParameter(stored);
  const OptionsOfParameters now = ByParameter(current);
  std::vector<std::string> changes;
  for (const char* key : kComparedOptions) {
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
