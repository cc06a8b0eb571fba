#pragma once

#include <memory>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/contract/worker_environment.h"
#include "worker/data/train_data.h"
#include "worker/data/windows.h"
#include "worker/run/run_description.h"

namespace fsdprun::worker {

/// What a run is given: read and checked by each rank alone, before the ranks meet.
struct RunInputs {
  Json resolved;
  TrainConfig config;
  RunDescription description;
  /// What of the model's config.json concerns the network.
  ModelConfig model;
  std::shared_ptr<const TrainData> train;
  /// Null if nothing is evaluated.
  std::shared_ptr<const Windows> valid;
};

/// Proves that `model` has an embedding for each byte. `source` names its config.json. Errors:
/// ConfigError.
void CheckBytes(const ModelConfig& model, const std::string& source);

/// That, and CheckPositions().
void CheckModel(const TrainConfig& config, const ModelConfig& model, const std::string& source);

/// What a start does about the places that rank 0 will write to.
enum class Outputs {
  kMade,      // folders are made, and written to
  kLookedAt,  // nothing is changed
};

/// Reads what `resolved` names, and checks that it fits together and that rank 0 can write where it
/// will. Warns on rank 0. Errors: ConfigError for what the user has to change, DataError for data
/// that cannot be read now.
RunInputs ReadInputs(const Json& resolved, const WorkerEnvironment& environment,
                     Outputs outputs = Outputs::kMade);

}  // namespace fsdprun::worker
