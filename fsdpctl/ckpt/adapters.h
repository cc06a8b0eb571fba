#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/models/lora.h"
#include "formats/tensors/tensor_source.h"
#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/export_files.h"
#include "fsdpctl/ckpt/model_description.h"

namespace fsdprun::ckpt {

/// The adapters that a checkpoint of fsdp-train has instead of the weights of a model: Note
/// [Adapters] in formats/models/lora.h.
struct AdapterDescription {
  LoraConfig lora;
  /// model.weights, as the user has spelled it; "none": the base was drawn from a seed.
  std::string base;
  /// Note [Digest of weights]; empty: unknown.
  std::string base_digest;
};

/// nullopt: the source has none. `path`: where it lies. Errors: std::runtime_error if what it says
/// of them is damaged.
std::optional<AdapterDescription> FindAdapters(const TensorSource& source, const std::string& path);

/// The weights of a base with the adapters added.
struct MergedModel {
  std::unique_ptr<TensorSource> base;
  std::unique_ptr<TensorSource> merged;
};

/// `source`, which must outlive the result, with the base that `options` name, or else the
/// checkpoint. Reads all of the base, to compare it with the one that the adapters were trained on.
/// Errors: fsdp::archive::Error if that is another one, or not known; as WeightsOfModel's.
MergedModel MergeWithBase(const CkptOptions& options, const AdapterDescription& adapters,
                          const ModelDescription& model, TensorSource& source);

/// The adapters' weights, with PEFT's names. Errors: fsdp::archive::Error naming those that are
/// missing or have another shape.
std::vector<ExportedTensor> AdapterTensors(const AdapterDescription& adapters,
                                           const ModelDescription& model,
                                           const TensorSource& source);

/// The text of adapter_config.json, as PEFT's PeftModel.from_pretrained reads it.
/// `base`: base_model_name_or_path; "none": null.
std::string AdapterConfig(const LoraConfig& lora, const ModelConfig& model,
                          const std::string& base);

}  // namespace fsdprun::ckpt
