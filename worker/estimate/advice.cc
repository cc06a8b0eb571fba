#include "worker/estimate/advice.h"

#include <algorithm>
#include <functional>

#include "worker/batch/step_plan.h"
#include "worker/estimate/format_estimate.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kToldMax = 3;

/// A change of the configuration.
struct Change {
  std::string settings;
  /// Whether it changes anything.
  bool is_one = false;
  std::function<void(TrainConfig&)> make;
  /// Another one goes further: it is left out of all together.
  bool is_outdone = false;
};

/// The same batch in forwards of `windows`.
void DivideBatch(TrainConfig& config, int64_t ranks, int64_t windows) {
  config.train.global_batch_size = StepSamples(config.train, ranks);
  config.train.grad_accumulation = 1;
  config.train.micro_batch_size = windows;
}

std::string SettingsOfBatch(const TrainConfig& config, int64_t ranks, int64_t windows) {
  // With a global batch there is no other count of forwards than the one that follows.
  const bool is_accumulated = config.train.grad_accumulation > 1;
  return "train.micro_batch_size=" + std::to_string(windows) +
         " with train.global_batch_size=" + std::to_string(StepSamples(config.train, ranks)) +
         (is_accumulated ? " and train.grad_accumulation=1" : "");
}

std::vector<Change> ChangesOf(const TrainConfig& config, int64_t ranks) {
  const TrainConfig::Train& train = config.train;
  const int64_t windows = train.micro_batch_size;
  const bool is_accumulated = train.grad_accumulation > 1 || train.global_batch_size > 0;
  const auto divide = [ranks](int64_t smaller) {
    return [ranks, smaller](TrainConfig& changed) { DivideBatch(changed, ranks, smaller); };
  };
  return {
      {SettingsOfBatch(config, ranks, windows / 2), windows > 1, divide(windows / 2),
       /*is_outdone=*/windows > 2},
      {SettingsOfBatch(config, ranks, 1), windows > 2, divide(1)},
      {"train.activation_checkpointing=true", !train.activation_checkpointing,
       [](TrainConfig& changed) { changed.train.activation_checkpointing = true; }},
      {"model.kernels=fused", !config.model.has_fused_kernels,
       [](TrainConfig& changed) { changed.model.has_fused_kernels = true; }},
      {"precision.param=bfloat16", config.precision.param == "float32",
       [](TrainConfig& changed) { changed.precision.param = "bfloat16"; }},
      {"parallel.strategy=full_shard", config.parallel.strategy != "full_shard",
       [](TrainConfig& changed) { changed.parallel.strategy = "full_shard"; }},
      {"parallel.dp_replicate=1", config.parallel.dp_replicate > 1,
       [](TrainConfig& changed) { changed.parallel.dp_replicate = 1; }},
      {"train.sync_each_micro_batch=true", !train.sync_each_micro_batch && is_accumulated,
       [](TrainConfig& changed) { changed.train.sync_each_micro_batch = true; }},
  };
}

int64_t PeakOf(const TrainConfig& config, const ModelConfig& model,
               const EstimateOptions& options) {
  return EstimateRun(config, model, options).peak();
}

}  // namespace

int64_t UsableBytes(int64_t device_memory) {
  return static_cast<int64_t>(kUsablePart * static_cast<double>(device_memory));
}

std::vector<Remedy> RemediesFor(const TrainConfig& config, const ModelConfig& model,
                                const EstimateOptions& options) {
  const int64_t peak = PeakOf(config, model, options);
  std::vector<Remedy> remedies;
  Remedy all;
  TrainConfig with_all = config;
  for (const Change& change : ChangesOf(config, options.ranks)) {
    if (!change.is_one) {
      continue;
    }
    TrainConfig changed = config;
    change.make(changed);
    const int64_t changed_peak = PeakOf(changed, model, options);
    if (changed_peak < peak) {
      remedies.push_back({change.settings, changed_peak});
    }
    if (changed_peak < peak && !change.is_outdone) {
      change.make(with_all);
      all.settings += (all.settings.empty() ? "" : ", ") + change.settings;
    }
  }
  std::stable_sort(remedies.begin(), remedies.end(),
                   [](const Remedy& a, const Remedy& b) { return a.peak < b.peak; });
  if (remedies.size() > 1) {
    all.peak = PeakOf(with_all, model, options);
    if (all.peak < remedies.front().peak) {
      remedies.push_back(all);
    }
  }
  return remedies;
}

std::string AdviceText(const TrainConfig& config, const ModelConfig& model,
                       const EstimateOptions& options) {
  const std::vector<Remedy> remedies = RemediesFor(config, model, options);
  std::string text;
  for (size_t i = 0; i < std::min(remedies.size(), kToldMax); ++i) {
    text += (i == 0 ? "set " : ", or ") + remedies[i].settings + " (an estimated " +
            BytesText(remedies[i].peak) + " a rank" +
            (i == 0 ? " instead of " + BytesText(PeakOf(config, model, options)) : "") + ")";
  }
  return text;
}

}  // namespace fsdprun::worker
