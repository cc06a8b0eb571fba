#pragma once

#include <memory>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/contract/worker_environment.h"
#include "worker/data/token_stream.h"

namespace fsdprun::worker {

/// What a run is given: read and checked by each rank alone, before the ranks meet.
struct RunInputs {
  Json resolved;
  TrainConfig config;
  /// The model's config.json, and what of it concerns the network.
  Json model_config;
  ModelConfig model;
  std::shared_ptr<const TokenStream> train;
  /// Null if nothing is evaluated.
  std::shared_ptr<const TokenStream> valid;
};

/// Reads what `resolved` names, and checks that it fits together and that rank 0 can write where it
/// will. Errors: ConfigError; as ReadModelConfig's and TokenStream's.
RunInputs ReadInputs(const Json& resolved, const WorkerEnvironment& environment);

}  // namespace fsdprun::worker
