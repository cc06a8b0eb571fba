#include "worker/estimate/run_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "worker/estimate/estimated_weights.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kStepTokensMax = int64_t{1} << 40;

/// `factors`: positive; named by `keys`.
void CheckProduct(const std::vector<int64_t>& factors, const std::string& keys) {
  int64_t tokens = 1;
  for (const int64_t factor : factors) {
    if (tokens > kStepTokensMax / factor) {
      throw ConfigError("configuration: " + keys + ": expected at most 2^40 tokens per step");
    }
    tokens *= factor;
  }
}

void CheckTokensOfStep(const TrainConfig& config, int64_t ranks) {
  const TrainConfig::Train& train = config.train;
  CheckProduct({config.data.seq_len, std::max<int64_t>(1, train.global_batch_size)},
               "train.global_batch_size * data.seq_len");
  CheckProduct({config.data.seq_len, train.micro_batch_size, train.grad_accumulation, ranks},
               "train.micro_batch_size * train.grad_accumulation * data.seq_len * ranks");
}

void CheckFrozen(const TrainConfig& config, const ModelConfig& model) {
  for (const std::string& pattern : config.train.freeze) {
    if (std::none_of(model.weights.begin(), model.weights.end(), [&](const WeightShape& weight) {
          return MatchesPattern(weight.name, pattern);
        })) {
      throw ConfigError("configuration: train.freeze has " + Excerpt(Json(pattern)) +
                        ": expected a pattern that matches a parameter, e.g. \"" +
                        model.weights.front().name + "\"");
    }
  }
  if (TrainableOf(WeightsOf(config, model)) == 0) {
    throw ConfigError("configuration: train.freeze has " +
                      Excerpt(Json(config.train.freeze.back())) +
                      ": expected patterns that leave a parameter to be trained");
  }
}

}  // namespace

void CheckPositions(const TrainConfig& config, const ModelConfig& model) {
  if (config.data.seq_len > model.max_position_embeddings) {
    throw ConfigError("configuration: data.seq_len = " + std::to_string(config.data.seq_len) +
                      ": expected at most the model's max_position_embeddings = " +
                      std::to_string(model.max_position_embeddings));
  }
}

void CheckFitsModel(const TrainConfig& config, const ModelConfig& model, int64_t ranks) {
  CheckPositions(config, model);
  CheckTokensOfStep(config, ranks);
  CheckFrozen(config, model);
}

}  // namespace fsdprun::worker
