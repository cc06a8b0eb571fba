#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/estimate/advice.h"
#include "worker/estimate/estimate.h"

namespace fsdprun::worker {

/// "12.3 GiB", "4.0 KiB", "17 B": 1024 bytes are a KiB.
std::string BytesText(int64_t bytes);

/// The peak in a few words, "1.2 GiB of a rank with a GPU".
std::string PeakText(const Estimate& estimate);

/// Of an estimate, whether it fits; told if the memory of a device is given.
struct MemoryVerdict {
  int64_t device_memory = 0;
  bool fits = false;
  /// By which it would fit, or all that help if it would not.
  std::vector<Remedy> remedies;
};

/// Pure.
MemoryVerdict JudgeMemory(const TrainConfig& config, const ModelConfig& model,
                          const EstimateOptions& options, const Estimate& estimate,
                          int64_t device_memory);

/// As a table for people, whose last lines are what was assumed.
std::string EstimateText(const TrainConfig& config, const ModelConfig& model,
                         const Estimate& estimate, const std::optional<MemoryVerdict>& verdict);

/// The same as numbers: bytes, seconds, operations. What is not known is null.
Json EstimateJson(const TrainConfig& config, const ModelConfig& model, const Estimate& estimate,
                  const std::optional<MemoryVerdict>& verdict);

}  // namespace fsdprun::worker
