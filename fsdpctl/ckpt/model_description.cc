#include "fsdpctl/ckpt/model_description.h"

#include <filesystem>

#include "formats/checkpoint/file_system.h"
#include "formats/files/output_file.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "fsdpctl/ckpt/inspect.h"

namespace fsdprun::ckpt {
namespace {

// Of train.state.
constexpr char kModelConfig[] = "model_config";
constexpr char kModelFolder[] = "model_folder";
constexpr char kGenerationConfig[] = "generation_config";

std::string FolderOfConfig(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? path : FolderOf(path);
}

std::optional<Json> ReadIfThere(const std::string& path) {
  return checkpoint::FileExists(path) ? std::optional(ReadStrictJsonFile(path)) : std::nullopt;
}

/// Empty if there is no text.
std::string TextAt(const Json& state, const char* pointer) {
  const Json::json_pointer place(pointer);
  return state.contains(place) && state.at(place).is_string() ? state.at(place).get<std::string>()
                                                              : std::string();
}

/// A checkpoint's own words lead nowhere but to an absolute path: a relative one was meant from the
/// folder in which its job ran, and may be there by chance from another one.
void TakeFolder(const Json& state, ModelDescription& found) {
  std::string folder = TextAt(state, "/model_folder");
  if (folder.empty()) {
    folder = TextAt(state, "/config/model/config");  // as the user has spelled it
    folder = folder.starts_with('/') ? FolderOfConfig(folder) : folder;
  }
  (folder.starts_with('/') ? found.folder : found.relative_folder) = folder;
}

std::optional<ModelDescription> DescriptionIn(const CheckpointTensors& source,
                                              const std::string& path) {
  const std::optional<Json> state = PlainObject(source.opened(), "train.state");
  if (!state || !state->is_object() || !state->contains(kModelConfig)) {
    return std::nullopt;
  }
  ModelDescription found;
  found.config = state->at(kModelConfig);
  found.source = path + ", train.state." + kModelConfig;
  TakeFolder(*state, found);
  if (const auto generation = state->find(kGenerationConfig); generation != state->end()) {
    found.generation = *generation;
  } else if (!found.folder.empty()) {
    found.generation = ReadIfThere(found.folder + "/generation_config.json");
  }
  return found;
}

}  // namespace

ModelDescription DescriptionByFile(const std::string& config_file) {
  ModelDescription model;
  model.config = ReadStrictJsonFile(config_file);
  model.source = config_file;
  model.folder = std::filesystem::absolute(FolderOf(config_file)).lexically_normal().string();
  model.generation = ReadIfThere(model.folder + "/generation_config.json");
  return model;
}

std::optional<ModelDescription> FindDescription(const TensorSource& source,
                                                const std::string& path) {
  if (const auto* dcp = dynamic_cast<const CheckpointTensors*>(&source)) {
    if (std::optional<ModelDescription> found = DescriptionIn(*dcp, path)) {
      return found;
    }
  }
  const std::string file = FolderOfConfig(path) + "/config.json";
  return checkpoint::FileExists(file) ? std::optional(DescriptionByFile(file)) : std::nullopt;
}

Json StateOfModel(const ModelDescription& model) {
  Json state = {{kModelConfig, model.config}, {kModelFolder, model.folder}};
  if (model.generation) {
    state[kGenerationConfig] = *model.generation;
  }
  return state;
}

}  // namespace fsdprun::ckpt
