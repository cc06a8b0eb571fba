#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/estimate/estimate.h"

namespace fsdprun::worker {

/// What of a device's memory a run should take at most: the rest is for the driver's context, for
/// what communication takes, and lost between pieces of memory.
inline constexpr double kUsablePart = 0.9;

int64_t UsableBytes(int64_t device_memory);

/// A change of settings by which a run takes less memory.
struct Remedy {
  /// "train.activation_checkpointing=true"
  std::string settings;
  /// What a rank takes then.
  int64_t peak = 0;
};

/// Changes that help, each alone, and behind them all together, if that is better than each: the
/// one that helps most first. The batch of a step stays what it is. Pure.
std::vector<Remedy> RemediesFor(const TrainConfig& config, const ModelConfig& model,
                                const EstimateOptions& options);

/// "set train.activation_checkpointing=true (an estimated 3.1 GiB a rank instead of 7.9 GiB), ...":
/// the first ones; empty if nothing helps. Pure.
std::string AdviceText(const TrainConfig& config, const ModelConfig& model,
                       const EstimateOptions& options);

}  // namespace fsdprun::worker
