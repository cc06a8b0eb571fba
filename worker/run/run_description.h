#pragma once

#include <string>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {

/// What a run was given, as part of its checkpoints: who reads one needs nothing else to build the
/// model and to know how it was trained.
struct RunDescription {
  /// The configuration with all its keys: sections of keys. Empty if the checkpoint was not trained
  /// by fsdp-train.
  Json config = Json::object();
  /// The model's config.json, as it was read.
  Json model_config = Json::object();
  /// Absolute: where that was, on rank 0's host, and the tokenizer's files may be. Empty: unknown.
  std::string model_folder = {};
};

/// Adds the description to a training state.
void FormatRunDescription(const RunDescription& description, Json& state);
/// Whether a training state says which model it is of; those of older versions do not.
bool HasRunDescription(const Json& state);
/// Precondition: HasRunDescription. Errors: ConfigError.
RunDescription ParseRunDescription(const Json& state);

/// Proves that a checkpoint can hold `document`, a model's config.json. Errors: ConfigError, naming
/// `source`, for one that is nested too deeply.
void CheckDescribable(const Json& document, const std::string& source);

}  // namespace fsdprun::worker
