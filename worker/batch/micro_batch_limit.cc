#include "worker/batch/micro_batch_limit.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "formats/checkpoint/error.h"
#include "worker/batch/step_plan.h"

namespace fsdprun::worker {
namespace {

constexpr int kVersion = 1;
constexpr char kModel[] = "model";
constexpr char kRanks[] = "ranks";
constexpr char kStepGraph[] = "train.step_graph";

constexpr const char* kMicroBatchSettings[] = {"train.micro_batch_size",
                                               "train.activation_checkpointing",
                                               "train.sync_each_micro_batch",
                                               kStepGraph,
                                               "train.freeze",
                                               "lora.rank",
                                               "lora.targets",
                                               "data.seq_len",
                                               "model.kernels",
                                               "optimizer.name",
                                               "optimizer.momentum",
                                               "precision.param",
                                               "precision.reduce",
                                               "precision.output",
                                               "parallel.backend",
                                               "parallel.strategy",
                                               "parallel.dp_replicate"};

std::string TextIn(const Json& document, const char* key) {
  const auto found = document.find(key);
  return found != document.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t CountIn(const Json& document, const char* key) {
  const auto found = document.find(key);
  return found != document.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

/// As lines, by their keys.
std::vector<std::string> ChangedSettings(const Json& then, const Json& now) {
  std::vector<std::string> changes;
  for (const auto& [key, value] : now.items()) {
    // Limits from before there were graphs do not say that there was none.
    const Json absent = key == kStepGraph ? Json(false) : Json();
    const Json before = then.is_object() ? then.value(key, absent) : Json();
    const bool has_more = key == kRanks && before.is_number_integer() && before > value;
    if (before == value || has_more) {
      continue;
    }
    changes.push_back(key == kModel ? "it was found with another model"
                                    : key + " was " + Excerpt(before) + " then and is " +
                                          Excerpt(value) + " now");
  }
  return changes;
}

}  // namespace

Json MicroBatchSettings(const Json& resolved, const ModelConfig& model, int64_t ranks) {
  Json settings = Json::object();
  for (const char* key : kMicroBatchSettings) {
    const std::string_view path = key;
    const size_t dot = path.find('.');
    settings[key] =
        resolved.at(std::string(path.substr(0, dot))).at(std::string(path.substr(dot + 1)));
  }
  settings[kModel] = model.description;
  settings[kRanks] = ranks;
  return settings;
}

std::string MicroBatchLimitPath(const std::string& dir) {
  return (std::filesystem::path(dir) / "micro-batch.json").string();
}

std::string EncodeMicroBatchLimit(const MicroBatchLimit& limit) {
  const Json document = {{"version", kVersion},    {"windows", limit.windows},
                         {"step", limit.step},     {"run", limit.run},
                         {"launch", limit.launch}, {"settings", limit.settings}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<MicroBatchLimit> DecodeMicroBatchLimit(const std::string& text) {
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || CountIn(document, "version") != kVersion ||
      CountIn(document, "windows") < 1 || !document.contains("settings")) {
    return std::nullopt;
  }
  return MicroBatchLimit{CountIn(document, "windows"), CountIn(document, "step"),
                         TextIn(document, "run"), TextIn(document, "launch"),
                         document.at("settings")};
}

std::string WhyNotFor(const MicroBatchLimit& limit, const LimitedStart& start) {
  const std::vector<std::string> changes = ChangedSettings(limit.settings, start.settings);
  if (!changes.empty()) {
    return changes.front();
  }
  const bool is_of_run = !start.run.empty() && limit.run == start.run;
  const bool is_of_launch = !start.launch.empty() && limit.launch == start.launch;
  return is_of_run || is_of_launch || !start.has_saved
             ? ""
             : "another run has found it, whose checkpoints are there";
}

void WriteMicroBatchLimit(checkpoint::FileSystem& file_system, const std::string& dir,
                          std::string writer, const MicroBatchLimit& limit) {
  const std::string path = MicroBatchLimitPath(dir);
  std::replace(writer.begin(), writer.end(), '/', '_');  // a launch may be called anything
  const std::string temporary = path + ".tmp-" + writer;
  file_system.WriteFile(temporary, EncodeMicroBatchLimit(limit));
  checkpoint::CheckIo(file_system.Rename(temporary, path), "rename to", path);
  checkpoint::CheckIo(file_system.SyncDirectory(dir), "sync", dir);
}

std::optional<int64_t> SmallerMicroBatch(int64_t windows) {
  return windows > 1 ? std::optional(windows / 2) : std::nullopt;
}

void LimitMicroBatch(TrainConfig::Train& train, int64_t windows, int64_t ranks) {
  if (windows < train.micro_batch_size) {
    train.global_batch_size = StepSamples(train, ranks);
    train.grad_accumulation = 1;
    train.micro_batch_size = windows;
    train.sync_each_micro_batch = true;
  }
}

}  // namespace fsdprun::worker
