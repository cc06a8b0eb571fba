#include "worker/run/run_description.h"

#include <algorithm>

namespace fsdprun::worker {
namespace {

constexpr char kConfigField[] = "config";
constexpr char kModelConfigField[] = "model_config";
// Far above any model's, and below what JSON and pickle are read with.
constexpr int kDepthMax = 32;

int DepthOf(const Json& value) {
  int deepest = 0;
  for (const Json& item : value) {
    if (item.is_structured()) {
      deepest = std::max(deepest, DepthOf(item));
    }
  }
  return deepest + 1;
}

}  // namespace

void FormatRunDescription(const RunDescription& description, Json& state) {
  state[kConfigField] = description.config;
  state[kModelConfigField] = description.model_config;
}

bool HasRunDescription(const Json& state) {
  return state.is_object() && state.contains(kConfigField) && state.contains(kModelConfigField);
}

RunDescription ParseRunDescription(const Json& state) {
  for (const char* field : {kConfigField, kModelConfigField}) {
    if (!state.at(field).is_object()) {
      throw ConfigError(std::string("training state: ") + field + ": expected an object");
    }
  }
  return {state.at(kConfigField), state.at(kModelConfigField)};
}

void CheckDescribable(const Json& document, const std::string& source) {
  if (DepthOf(document) > kDepthMax) {
    throw ConfigError(source + ": nested deeper than " + std::to_string(kDepthMax) +
                      ", which checkpoints cannot hold");
  }
}

}  // namespace fsdprun::worker
