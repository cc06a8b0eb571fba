#include "worker/config/training_rules.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

const Json& ValueOf(const Json& config, std::string_view key) {
  const size_t dot = key.find('.');
  return config.at(std::string(key.substr(0, dot))).at(std::string(key.substr(dot + 1)));
}

[[noreturn]] void Refuse(const Json& config, std::string_view key, const std::string& expected) {
  throw ConfigError("configuration: " + std::string(key) + " = " + Excerpt(ValueOf(config, key)) +
                    ": expected " + expected);
}

/// A key that has a meaning only while `chooser` has one of the values.
struct Dependence {
  std::string_view key;
  std::string_view chooser;
  std::vector<std::string_view> values;
};

const std::vector<Dependence>& Dependences() {
  static const std::vector<Dependence> all = {
      {"optimizer.betas", "optimizer.name", {"adamw", "muon"}},
      {"optimizer.eps", "optimizer.name", {"adamw", "muon"}},
      {"optimizer.momentum", "optimizer.name", {"sgd", "muon"}},
      {"optimizer.dampening", "optimizer.name", {"sgd"}},
      {"optimizer.nesterov", "optimizer.name", {"sgd", "muon"}},
      {"optimizer.fused", "optimizer.name", {"adamw", "muon"}},
      {"optimizer.ns_steps", "optimizer.name", {"muon"}},
      {"optimizer.adjust_lr_fn", "optimizer.name", {"muon"}},
      {"optimizer.adamw_lr", "optimizer.name", {"muon"}},
      {"schedule.decay_steps", "schedule.kind", {"wsd"}},
      {"schedule.decay_fraction", "schedule.kind", {"wsd"}},
      {"schedule.decay_shape", "schedule.kind", {"wsd"}},
      {"train.spike_window", "train.on_spike", {"stop", "skip", "rollback"}},
      {"train.spike_deviations", "train.on_spike", {"stop", "skip", "rollback"}},
  };
  return all;
}

bool HasMeaning(const Json& config, const Dependence& dependence) {
  const Json& chosen = ValueOf(config, dependence.chooser);
  return std::any_of(dependence.values.begin(), dependence.values.end(),
                     [&](const std::string_view value) { return chosen == value; });
}

/// What is given is what differs from the default.
void CheckDependences(const Json& config) {
  const Json defaults = DefaultConfig();
  for (const Dependence& dependence : Dependences()) {
    const auto& [key, chooser, values] = dependence;
    const std::string chosen = ValueOf(config, chooser);
    if (ValueOf(config, key) != ValueOf(defaults, key) && !HasMeaning(config, dependence)) {
      std::string names;
      for (const std::string_view value : values) {
        names += (names.empty() ? "\"" : " or \"") + std::string(value) + "\"";
      }
      Refuse(config, key,
             "the default, " + ValueOf(defaults, key).dump() + ", with " + std::string(chooser) +
                 " = \"" + chosen + "\"; it is for " + names);
    }
  }
}

void CheckOptimizer(const Json& config) {
  const Json& momentum = ValueOf(config, "optimizer.momentum");
  if (ValueOf(config, "optimizer.name") == "sgd" && ValueOf(config, "optimizer.nesterov") == true &&
      (momentum == "auto" || momentum == 0 || ValueOf(config, "optimizer.dampening") != 0)) {
    Refuse(config, "optimizer.nesterov",
           "false without optimizer.momentum, and with optimizer.dampening");
  }
}

void CheckSchedule(const Json& config) {
  const Json& schedule = config.at("schedule");
  const int64_t steps = ValueOf(config, "train.steps");
  const Schedule parsed = ParseSchedule(schedule, steps);
  if (parsed.kind == ScheduleKind::kWsd && parsed.decay_steps > 0 &&
      parsed.decay_steps + parsed.warmup_steps > steps) {
    Refuse(config,
           schedule.at("decay_steps") == 0 ? "schedule.decay_fraction" : "schedule.decay_steps",
           "a decay that fits behind the " + std::to_string(parsed.warmup_steps) +
               " steps of schedule.warmup_steps into the " + std::to_string(steps) +
               " of train.steps; it has " + std::to_string(parsed.decay_steps));
  }
}

void CheckTrain(const Json& config) {
  if (ValueOf(config, "train.global_batch_size") != 0 &&
      ValueOf(config, "train.grad_accumulation") != 1) {
    Refuse(config, "train.grad_accumulation",
           "1 with train.global_batch_size, which it follows from");
  }
  if (ValueOf(config, "train.step_graph") == true && ValueOf(config, "optimizer.name") != "adamw") {
    Refuse(config, "train.step_graph",
           "false with optimizer.name = " + ValueOf(config, "optimizer.name").dump() +
               ", whose learning rate a graph would keep as it was captured; set it to adamw for "
               "graphs");
  }
  for (const char* key : {"train.on_nonfinite", "train.on_spike"}) {
    if (ValueOf(config, key) == "rollback" && ValueOf(config, "checkpoint.dir") == "") {
      Refuse(config, key, "another one without checkpoint.dir, from which it would go on");
    }
  }
  if (ValueOf(config, "train.on_out_of_memory") == "shrink" &&
      ValueOf(config, "checkpoint.dir") == "") {
    Refuse(config, "train.on_out_of_memory",
           "stop without checkpoint.dir, where the next start finds what has fitted");
  }
}

void CheckLora(const Json& config) {
  const Json defaults = DefaultConfig();
  const bool is_on = ValueOf(config, "lora.rank") != 0;
  for (const char* key : {"lora.alpha", "lora.targets"}) {
    if (!is_on && ValueOf(config, key) != ValueOf(defaults, key)) {
      Refuse(config, key,
             "the default, " + ValueOf(defaults, key).dump() +
                 ", without lora.rank, with which adapters begin; set lora.rank, e.g. to 8");
    }
  }
  if (is_on && !ValueOf(config, "train.freeze").empty()) {
    Refuse(config, "train.freeze", "[] with lora.rank, which freezes all weights of the model");
  }
}

}  // namespace

Schedule ParseSchedule(const Json& schedule, int64_t total_steps) {
  const std::string kind = schedule.at("kind");
  const std::string shape = schedule.at("decay_shape");
  const int64_t decay_steps = schedule.at("decay_steps");
  return {kind == "cosine"   ? ScheduleKind::kCosine
          : kind == "linear" ? ScheduleKind::kLinear
          : kind == "wsd"    ? ScheduleKind::kWsd
                             : ScheduleKind::kConstant,
          schedule.at("warmup_steps"),
          schedule.at("min_lr_ratio"),
          total_steps,
          decay_steps > 0 ? decay_steps : DecaySteps(total_steps, schedule.at("decay_fraction")),
          shape == "cosine"   ? DecayShape::kCosine
          : shape == "linear" ? DecayShape::kLinear
                              : DecayShape::kOneMinusSqrt};
}

void TakeWhereWithoutMeaning(const Json& from, Json& config) {
  for (const Dependence& dependence : Dependences()) {
    if (!HasMeaning(config, dependence)) {
      const std::string key(dependence.key);
      const size_t dot = key.find('.');
      config[key.substr(0, dot)][key.substr(dot + 1)] = ValueOf(from, key);
    }
  }
}

void CheckTrainingRules(const Json& config) {
  CheckDependences(config);
  CheckOptimizer(config);
  CheckSchedule(config);
  CheckTrain(config);
  CheckLora(config);
}

}  // namespace fsdprun::worker
