#include "worker/estimate/estimated_weights.h"

#include <algorithm>

#include "formats/models/lora.h"
#include "fsdp_runtime/plan/box.h"
#include "worker/estimate/base_dtype.h"

namespace fsdprun::worker {
namespace {

/// Whether a weight of the model itself keeps its value.
bool IsFrozen(const std::string& name, const TrainConfig& config) {
  return config.lora.is_on() ||
         std::any_of(config.train.freeze.begin(), config.train.freeze.end(),
                     [&name](const std::string& pattern) { return MatchesPattern(name, pattern); });
}

}  // namespace

int64_t EstimatedWeight::numel() const { return fsdp::plan::numel_of(shape); }

std::vector<EstimatedWeight> WeightsOf(const TrainConfig& config, const ModelConfig& model,
                                       const std::string& stored) {
  const int64_t kept_bytes = BytesOfDtype(DtypeOfBase(config, stored));
  std::vector<EstimatedWeight> weights;
  for (const WeightShape& weight : model.weights) {
    weights.push_back({weight.name, weight.shape, !IsFrozen(weight.name, config), kept_bytes});
  }
  if (config.lora.is_on()) {
    for (const WeightShape& weight : AdapterWeights(model, config.lora)) {
      weights.push_back({weight.name, weight.shape});
    }
  }
  return weights;
}

int64_t TotalOf(const std::vector<EstimatedWeight>& weights) {
  int64_t total = 0;
  for (const EstimatedWeight& weight : weights) {
    total += weight.numel();
  }
  return total;
}

int64_t TrainableOf(const std::vector<EstimatedWeight>& weights) {
  int64_t total = 0;
  for (const EstimatedWeight& weight : weights) {
    total += weight.is_trainable ? weight.numel() : 0;
  }
  return total;
}

int64_t BytesOfDtype(const std::string& name) { return name == "bfloat16" ? 2 : 4; }

}  // namespace fsdprun::worker
