#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

/// A parameter of a run, as far as what it takes depends on it.
struct EstimatedWeight {
  std::string name;
  std::vector<int64_t> shape;
  /// Whether it has a gradient, and an optimizer updates it.
  bool is_trainable = true;

  int64_t numel() const;
};

/// Those that a run of `config` has: of the model in the order in which its module registers them,
/// then of adapters. Errors: ConfigError for lora.targets that are no layers. Pure.
std::vector<EstimatedWeight> WeightsOf(const TrainConfig& config, const ModelConfig& model);

/// Elements of all of them; of those that are trained.
int64_t TotalOf(const std::vector<EstimatedWeight>& weights);
int64_t TrainableOf(const std::vector<EstimatedWeight>& weights);

/// Of an element of a shard and of its gradient, which are float32.
inline constexpr int64_t kMasterBytes = 4;

/// Bytes of an element in the dtype of this name: "float32" or "bfloat16".
int64_t BytesOfDtype(const std::string& name);

}  // namespace fsdprun::worker
