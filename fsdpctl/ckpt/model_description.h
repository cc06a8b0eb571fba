#pragma once

#include <optional>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun::ckpt {

/// Which model a checkpoint is of.
struct ModelDescription {
  Json config = Json::object();  // config.json
  std::string source;            // where it is from, for errors
  /// Where the model's other files are, such as its tokenizer's; empty: unknown.
  std::string folder;
  /// The checkpoint names a folder relative to where its job ran, which is not looked for here.
  std::string relative_folder;
  /// generation_config.json; nullopt: the model has none.
  std::optional<Json> generation;
};

/// What the source, which lies at `path`, says of its model: a checkpoint in its training state;
/// files of weights by the config.json beside them. nullopt: nothing. Errors: std::runtime_error if
/// that is damaged.
std::optional<ModelDescription> FindDescription(const TensorSource& source,
                                                const std::string& path);

/// Of a config.json, and the generation_config.json beside it.
ModelDescription DescriptionByFile(const std::string& config_file);

/// The training state of a checkpoint that consists of a model alone.
Json StateOfModel(const ModelDescription& model);

}  // namespace fsdprun::ckpt
