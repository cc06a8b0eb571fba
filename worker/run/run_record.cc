#include "worker/run/run_record.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "worker/config/training_rules.h"

namespace fsdprun::worker {
namespace {

constexpr char kModelField[] = "model";
constexpr char kSettingsField[] = "settings";
constexpr char kAdaptersField[] = "adapters";
constexpr int64_t kMostSteps = int64_t{1} << 53;
constexpr char kKind[] = "schedule.kind";
constexpr char kSteps[] = "train.steps";
constexpr char kFreeze[] = "train.freeze";
constexpr char kOptimizer[] = "optimizer.name";

// Those of a group of the optimizer are compared for each parameter (DescribeChangedGroups), those
// of the data with the position in it (CompareData).
constexpr const char* kSettings[] = {"train.max_grad_norm",
                                     kFreeze,
                                     kOptimizer,
                                     "optimizer.lr",
                                     "optimizer.adamw_lr",
                                     kKind,
                                     "schedule.warmup_steps",
                                     "schedule.min_lr_ratio",
                                     "precision.param",
                                     "precision.reduce",
                                     "precision.output"};

/// Of schedule.kind wsd, besides these.
constexpr const char* kWsdSettings[] = {"schedule.decay_steps", "schedule.decay_fraction",
                                        "schedule.decay_shape"};

/// The product of what a user may change for another, such as ranks for accumulation.
constexpr char kStepWindows[] = "the number of windows in an optimizer step";

const Json& At(const Json& resolved, std::string_view key) {
  const size_t dot = key.find('.');
  return resolved.at(std::string(key.substr(0, dot))).at(std::string(key.substr(dot + 1)));
}

/// "PREFIXkey was X at the checkpoint and is Y now", for what both have.
void Compare(const Json& before, const Json& now, const std::string& prefix,
             const std::set<std::string>& may_differ, bool is_model,
             std::vector<RunChange>& changes) {
  for (const auto& [key, value] : now.items()) {
    if (before.contains(key) && before.at(key) != value && !may_differ.contains(key)) {
      changes.push_back({prefix + key + " was " + Excerpt(before.at(key)) +
                             " at the checkpoint and is " + Excerpt(value) + " now",
                         is_model});
    }
  }
}

bool IsWsd(const RunRecord& record) {
  return record.settings.contains(kKind) && record.settings.at(kKind) == "wsd";
}

/// Of a record with schedule.kind wsd; none if it does not say all of it, or not as it should.
std::optional<Schedule> ScheduleOf(const RunRecord& record) {
  try {
    Json section;
    for (const char* key : {kKind, "schedule.warmup_steps", "schedule.min_lr_ratio",
                            kWsdSettings[0], kWsdSettings[1], kWsdSettings[2]}) {
      section[std::string(key).substr(std::string_view("schedule.").size())] =
          record.settings.at(key);
    }
    const Schedule schedule = ParseSchedule(section, record.settings.at(kSteps).get<int64_t>());
    const auto is_count = [](int64_t steps) { return steps >= 0 && steps <= kMostSteps; };
    const bool is_right = is_count(schedule.total_steps) && is_count(schedule.warmup_steps) &&
                          is_count(schedule.decay_steps);
    return is_right ? std::optional(schedule) : std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

/// Whether weights of adapters, and not their optimizer's state alone, are missing or differ.
bool IsOfAdapters(const std::string& mismatch) {
  if (mismatch.find("other shapes") != std::string::npos) {
    return true;
  }
  std::istringstream words(mismatch);
  for (std::string word; words >> word;) {
    while (word.ends_with(',') || word.ends_with(';')) {
      word.pop_back();
    }
    if (IsAdapterWeight(word) && !word.starts_with("optim.state.")) {
      return true;
    }
  }
  return false;
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

}  // namespace

Json DescribeAdapters(const ModelConfig& model, const LoraConfig& lora) {
  if (!lora.is_on()) {
    return Json::object();
  }
  return {{"lora.rank", lora.rank},
          {"lora.alpha", lora.alpha},
          {"lora.targets", TargetModules(model, lora)}};
}

RunRecord RecordRun(const ModelConfig& model, const Json& resolved, int64_t world_size) {
  RunRecord record{model.description};
  for (const char* key : kSettings) {
    record.settings[key] = At(resolved, key);
  }
  if (IsWsd(record)) {
    for (const char* key : kWsdSettings) {
      record.settings[key] = At(resolved, key);
    }
  }
  if (record.settings.at(kKind) != "constant") {
    record.settings[kSteps] = At(resolved, kSteps);
  }
  record.adapters = DescribeAdapters(model, ParseLora(resolved.at("lora"), "configuration"));
  const int64_t given = At(resolved, "train.global_batch_size");
  record.settings[kStepWindows] =
      given > 0 ? given
                : At(resolved, "train.micro_batch_size").get<int64_t>() *
                      At(resolved, "train.grad_accumulation").get<int64_t>() * world_size;
  return record;
}

void FormatRunRecord(const RunRecord& record, Json& state) {
  state[kModelField] = record.model;
  state[kSettingsField] = record.settings;
  if (!record.adapters.empty()) {
    state[kAdaptersField] = record.adapters;
  }
}

bool HasRunRecord(const Json& state) {
  return state.is_object() && state.contains(kModelField) && state.contains(kSettingsField);
}

RunRecord ParseRunRecord(const Json& state) {
  for (const char* field : {kModelField, kSettingsField}) {
    if (!state.at(field).is_object()) {
      throw ConfigError(std::string("training state: ") + field + ": expected an object");
    }
  }
  RunRecord record{state.at(kModelField), state.at(kSettingsField)};
  if (state.contains(kAdaptersField)) {
    record.adapters = state.at(kAdaptersField);
    if (!record.adapters.is_object()) {
      throw ConfigError(std::string("training state: ") + kAdaptersField + ": expected an object");
    }
  }
  return record;
}

std::vector<RunChange> CompareRuns(const RunRecord& before, const RunRecord& now) {
  std::vector<RunChange> changes;
  Compare(before.model, now.model, "the model's ", {"initializer_range", "max_position_embeddings"},
          /*is_model=*/true, changes);
  // Until its decay wsd does not depend on it.
  const std::set<std::string> may_differ =
      IsWsd(now) ? std::set<std::string>{kSteps} : std::set<std::string>{};
  Compare(before.settings, now.settings, "", may_differ, /*is_model=*/false, changes);
  return changes;
}

std::vector<std::string> CompareAdapters(const RunRecord& before, const RunRecord& now) {
  if (before.adapters.empty() != now.adapters.empty()) {
    return {now.adapters.empty() ? "the checkpoint has adapters alone, and lora.rank is 0 now"
                                 : "the checkpoint has no adapters, and lora.rank is " +
                                       Excerpt(now.adapters.value("lora.rank", Json())) + " now"};
  }
  std::vector<RunChange> changes;
  Compare(before.adapters, now.adapters, "", {}, /*is_model=*/true, changes);
  std::vector<std::string> texts;
  texts.reserve(changes.size());
  for (RunChange& change : changes) {
    texts.push_back(std::move(change.text));
  }
  return texts;
}

std::string DescribeMismatch(const RunRecord& before, const RunRecord& now,
                             const std::string& mismatch) {
  const std::vector<std::string> adapters = CompareAdapters(before, now);
  const bool is_of_adapters =
      before.adapters.empty() != now.adapters.empty() || IsOfAdapters(mismatch);
  if (is_of_adapters && !adapters.empty()) {
    return adapters.front();
  }
  const auto of = [](const RunRecord& record, const char* key) {
    return record.settings.value(key, Json());
  };
  const bool is_of_optimizer = mismatch.find("optim.state.") != std::string::npos &&
                               of(before, kOptimizer) == of(now, kOptimizer);
  if (!is_of_optimizer || !before.settings.contains(kFreeze) ||
      of(before, kFreeze) == of(now, kFreeze)) {
    return mismatch;
  }
  return std::string(kFreeze) + " was " + Excerpt(of(before, kFreeze)) +
         " at the checkpoint and is " + Excerpt(of(now, kFreeze)) +
         " now, and for what is trained only now it has nothing of an optimizer; set it back, or "
         "begin anew with its weights: in another checkpoint.dir, with model.weights = " +
         "the checkpoint";
}

std::string DescribeInterruptedDecay(const RunRecord& before, const RunRecord& now, int64_t step) {
  if (!IsWsd(before) || !IsWsd(now)) {
    return "";
  }
  const std::optional<Schedule> then = ScheduleOf(before);
  const std::optional<Schedule> schedule = ScheduleOf(now);
  if (!then || !schedule) {
    return "";
  }
  const int64_t begin = std::max(then->warmup_steps, then->total_steps - then->decay_steps);
  const double old_factor = then->Factor(step);
  const double factor = schedule->Factor(step);
  if (step <= begin || std::abs(factor - old_factor) <= 1e-9) {
    return "";
  }
  return "train.steps was " + std::to_string(then->total_steps) + " at the checkpoint and is " +
         std::to_string(schedule->total_steps) +
         " now, and the decay of schedule.kind wsd had begun after step " + std::to_string(begin) +
         ": the next step has " + Number(factor) + " of the highest learning rate instead of " +
         Number(old_factor) + "; to put the decay off, go on from a checkpoint of step " +
         std::to_string(begin) + " or before";
}

}  // namespace fsdprun::worker
