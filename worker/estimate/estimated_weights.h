#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

/// Of an element of a shard and of its gradient, which are float32 where they are trained.
inline constexpr int64_t kMasterBytes = 4;

/// A parameter of a run, as far as what it takes depends on it.
struct EstimatedWeight {
  std::string name;
  std::vector<int64_t> shape;
  /// Whether it has a gradient, and an optimizer updates it.
  bool is_trainable = true;
  /// Of an element, as a rank keeps it.
  int64_t kept_bytes = kMasterBytes;

  int64_t numel() const;
};

/// Those that a run of `config` has: of the model in the order in which its module registers them,
/// then of adapters. `stored`: the dtype of the files of model.weights (DtypeOfStoredBase). Errors:
/// ConfigError for lora.targets that are no layers. Pure.
std::vector<EstimatedWeight> WeightsOf(const TrainConfig& config, const ModelConfig& model,
                                       const std::string& stored = "float32");

/// Elements of all of them; of those that are trained.
int64_t TotalOf(const std::vector<EstimatedWeight>& weights);
int64_t TrainableOf(const std::vector<EstimatedWeight>& weights);

/// Bytes of an element in the dtype of this name: "float32" or "bfloat16".
int64_t BytesOfDtype(const std::string& name);

}  // namespace fsdprun::worker
