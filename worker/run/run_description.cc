#include "worker/run/run_description.h"

#include <algorithm>
#include <utility>

namespace fsdprun::worker {
namespace {

constexpr char kConfigField[] = "config";
constexpr char kModelConfigField[] = "model_config";
constexpr char kModelFolderField[] = "model_folder";
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
  if (!description.model_folder.empty()) {
    state[kModelFolderField] = description.model_folder;
  }
}

bool HasRunDescription(const Json& state) {
  return state.is_object() && state.contains(kModelConfigField);
}

RunDescription ParseRunDescription(const Json& state) {
  RunDescription description;
  for (const auto& [field, value] : {std::pair(kConfigField, &description.config),
                                     std::pair(kModelConfigField, &description.model_config)}) {
    if (state.contains(field)) {
      *value = state.at(field);
    }
    if (!value->is_object()) {
      throw ConfigError(std::string("training state: ") + field + ": expected an object");
    }
  }
  if (const auto folder = state.find(kModelFolderField); folder != state.end()) {
    description.model_folder = folder->is_string() ? folder->get<std::string>() : std::string();
  }
  return description;
}

void CheckDescribable(const Json& document, const std::string& source) {
  if (DepthOf(document) > kDepthMax) {
    throw ConfigError(source + ": nested deeper than " + std::to_string(kDepthMax) +
                      ", which checkpoints cannot hold");
  }
}

}  // namespace fsdprun::worker
