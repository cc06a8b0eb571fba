#pragma once

#include <map>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun::ckpt {

/// The names of a model's weights, and of their tensors in a source.
using WeightNameMap = std::map<std::string, std::string>;

struct ModelWeights {
  WeightNameMap weights;
  /// Why they were not compared with the model: its family, or a setting, is not known here. Empty:
  /// they are its weights, in names and shapes.
  std::string unchecked;
};

/// The weights of `source`, which lies at `path`, as those of the model that `config` describes:
/// where files of a model without its head leave out the prefix of all names, with it; without
/// buffers that the model computes, and without a head that is the embedding, once it is equal.
/// `config_source` names the configuration in errors. Errors: fsdp::archive::Error naming weights
/// that are missing, that the model does not have, or that have another shape; those of the source.
ModelWeights WeightsOfModel(TensorSource& source, const std::string& path, const Json& config,
                            const std::string& config_source);

/// Takes a head out of the weights, for which transformers 4 and 5 make different models of files
/// that have both, unless they are equal. Does nothing if one of the two is not there. Errors:
/// fsdp::archive::Error if they differ.
void DropTiedHead(TensorSource& source, const std::string& path, const std::string& head,
                  const std::string& embedding, WeightNameMap& weights);

}  // namespace fsdprun::ckpt
