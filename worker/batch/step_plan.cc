#include "worker/batch/step_plan.h"

#include <algorithm>
#include <string>

namespace fsdprun::worker {
namespace {

/// "1, 2, 4": the numbers up to 64 that divide `samples`.
std::string DivisorsOf(int64_t samples) {
  std::string text;
  for (int64_t ranks = 1; ranks <= std::min<int64_t>(samples, 64); ++ranks) {
    if (samples % ranks == 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(ranks);
    }
  }
  return text;
}

void CheckShares(const TrainConfig& config, int64_t ranks) {
  const int64_t samples = config.train.global_batch_size;
  const std::string given = "configuration: train.global_batch_size = " + std::to_string(samples) +
                            " on " + std::to_string(ranks) + " ranks: expected ";
  if (samples < ranks) {
    throw ConfigError(given + "at least one sample for each; use fewer ranks or a larger batch");
  }
  if (samples % ranks != 0 && config.data.sampler != "global") {
    throw ConfigError(given + "a multiple of the ranks with data.sampler = \"" +
                      config.data.sampler + "\", such as on " + DivisorsOf(samples) +
                      " ranks; set data.sampler to global to share it unevenly");
  }
}

}  // namespace

int64_t StepSamples(const TrainConfig::Train& train, int64_t ranks) {
  return train.global_batch_size > 0 ? train.global_batch_size
                                     : train.micro_batch_size * train.grad_accumulation * ranks;
}

StepPlan PlanStep(const TrainConfig& config, int64_t rank, int64_t ranks) {
  const int64_t micro = config.train.micro_batch_size;
  if (config.train.global_batch_size > 0) {
    CheckShares(config, ranks);
  }
  StepPlan plan;
  plan.micro_batch_size = micro;
  plan.ranks = ranks;
  plan.samples = StepSamples(config.train, ranks);
  plan.is_even = plan.samples % ranks == 0;
  plan.own_samples = plan.samples / ranks + (rank < plan.samples % ranks ? 1 : 0);
  plan.own_weight =
      static_cast<double>(plan.own_samples * ranks) / static_cast<double>(plan.samples);
  const int64_t most = (plan.samples + ranks - 1) / ranks;
  plan.forwards = (most + micro - 1) / micro;
  return plan;
}

MicroBatch StepPlan::At(int64_t index) const {
  const int64_t taken =
      std::clamp(own_samples - index * micro_batch_size, int64_t{0}, micro_batch_size);
  return taken == 0
             ? MicroBatch{1, 0.0}
             : MicroBatch{taken, static_cast<double>(samples) / static_cast<double>(taken * ranks)};
}

int64_t StepPlan::largest_forward() const {
  return std::min(micro_batch_size, (samples + ranks - 1) / ranks);
}

}  // namespace fsdprun::worker
