#pragma once

#include <memory>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/contract/worker_environment.h"
#include "worker/data/token_stream.h"
#include "worker/run/run_description.h"

namespace fsdprun::worker {

/// What a run is given: read and checked by each rank alone, before the ranks meet.
struct RunInputs {
  Json resolved;
  TrainConfig config;
  RunDescription description;
  /// What of the model's config.json concerns the network.
  ModelConfig model;
  std::shared_ptr<const TokenStream> train;
  /// Null if nothing is evaluated.
  std::shared_ptr<const TokenStream> valid;
};

/// Proves that `model` can do what `config` asks of it. `source` names its config.json. Errors:
/// ConfigError.
void CheckModel(const TrainConfig& config, const ModelConfig& model, const std::string& source);

/// Reads what `resolved` names, and checks that it fits together and that rank 0 can write where it
/// will. Errors: ConfigError; as ReadModelConfig's and TokenStream's.
RunInputs ReadInputs(const Json& resolved, const WorkerEnvironment& environment);

}  // namespace fsdprun::worker
