#include "fsdpctl/ckpt/adapters.h"

#include <cmath>
#include <map>
#include <utility>

#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/merged_tensors.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/weights_digest.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/inspect.h"
#include "fsdpctl/ckpt/model_weights.h"

namespace fsdprun::ckpt {
namespace {

using fsdp::archive::Error;

constexpr char kNoBase[] = "none";
constexpr char kPeftPrefix[] = "base_model.model.";
// Of train.state, as fsdp-train writes it (worker/run/run_record.cc).
constexpr char kLora[] = "/config/lora";
constexpr char kWeights[] = "/config/model/weights";
constexpr char kBaseDigest[] = "/adapters/the digest of the base";

std::string StoredText(const Json& state, const char* pointer) {
  const Json::json_pointer place(pointer);
  return state.contains(place) && state.at(place).is_string() ? state.at(place).get<std::string>()
                                                              : std::string();
}

ModelConfig ModelOf(const ModelDescription& model) {
  return ParseModelConfig(model.config, model.source);
}

/// Where the base is. A checkpoint's own words lead nowhere but to an absolute path.
std::string BasePath(const CkptOptions& options, const AdapterDescription& adapters) {
  if (!options.base.empty()) {
    return options.base;
  }
  if (adapters.base.starts_with('/')) {
    return adapters.base;
  }
  const bool is_named = !adapters.base.empty() && adapters.base != kNoBase;
  throw Error("cannot export " + options.operands[0] +
              ": it has adapters alone; name the weights of their base with --base PATH" +
              (is_named ? ", which was " + adapters.base + ", seen from where the job ran"
                        : std::string()) +
              ", or write the adapters with --format adapter");
}

/// The key of the weight; the shape is the model's.
const std::string& StoredKey(const TensorSource& source, const WeightNameMap& keys,
                             const WeightShape& weight) {
  const auto key = keys.find(weight.name);
  if (key == keys.end()) {
    throw Error("the checkpoint has no " + weight.name + ", of an adapter that it says it has");
  }
  const std::vector<int64_t>& shape = source.tensors().at(key->second).shape;
  if (shape != weight.shape) {
    throw Error("the checkpoint has " + weight.name + " with the shape " + ShapeText(shape) +
                ", that of its adapters is " + ShapeText(weight.shape));
  }
  return key->second;
}

}  // namespace

std::optional<AdapterDescription> FindAdapters(const TensorSource& source,
                                               const std::string& path) {
  const auto* dcp = dynamic_cast<const CheckpointTensors*>(&source);
  const std::optional<Json> state =
      dcp == nullptr ? std::nullopt : PlainObject(dcp->opened(), "train.state");
  const Json::json_pointer place(kLora);
  if (!state || !state->contains(place) || !state->at(place).is_object()) {
    return std::nullopt;
  }
  AdapterDescription found;
  found.lora = ParseLora(state->at(place), path + ", train.state");
  found.base = StoredText(*state, kWeights);
  found.base_digest = StoredText(*state, kBaseDigest);
  return found.lora.is_on() ? std::optional(std::move(found)) : std::nullopt;
}

MergedModel MergeWithBase(const CkptOptions& options, const AdapterDescription& adapters,
                          const ModelDescription& model, TensorSource& source) {
  const ModelConfig config = ModelOf(model);
  const std::string path = BasePath(options, adapters);
  MergedModel result;
  result.base = OpenTensors(path);
  const WeightNameMap weights =
      WeightsOfModel(*result.base, path, model.config, model.source).weights;
  if (!adapters.base_digest.empty() &&
      DigestOfWeights(*result.base, weights) != adapters.base_digest) {
    throw Error("cannot export " + options.operands[0] + ": the weights of " + path +
                " are not those that its adapters were trained on; name these with --base PATH");
  }
  const WeightNameMap keys = source.Weights();
  const std::vector<WeightShape> matrices = AdapterWeights(config, adapters.lora);
  const std::vector<std::string> layers = AdaptedLayers(config, adapters.lora);
  std::map<std::string, AdapterNames> by_weight;
  for (size_t i = 0; i < layers.size(); ++i) {
    by_weight[weights.at(layers[i] + ".weight")] = {StoredKey(source, keys, matrices[2 * i]),
                                                    StoredKey(source, keys, matrices[2 * i + 1])};
  }
  result.merged = std::make_unique<MergedTensors>(
      *result.base, source, std::move(by_weight),
      MergeOptions{.scale = adapters.lora.scale(), .is_transposed = HasTransposedLayers(config)});
  return result;
}

std::vector<ExportedTensor> AdapterTensors(const AdapterDescription& adapters,
                                           const ModelDescription& model,
                                           const TensorSource& source) {
  const WeightNameMap keys = source.Weights();
  std::vector<ExportedTensor> tensors;
  for (const WeightShape& weight : AdapterWeights(ModelOf(model), adapters.lora)) {
    const std::string& key = StoredKey(source, keys, weight);
    tensors.push_back({kPeftPrefix + weight.name, key, source.tensors().at(key).dtype});
  }
  return tensors;
}

std::string AdapterConfig(const LoraConfig& lora, const ModelConfig& model,
                          const std::string& base) {
  const bool is_whole = std::floor(lora.alpha) == lora.alpha && std::abs(lora.alpha) < 1e15;
  const Json config = {
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", base == kNoBase || base.empty() ? Json() : Json(base)},
      {"bias", "none"},
      {"fan_in_fan_out", HasTransposedLayers(model)},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", is_whole ? Json(static_cast<int64_t>(lora.alpha)) : Json(lora.alpha)},
      {"lora_dropout", 0.0},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", lora.rank},
      {"revision", nullptr},
      {"target_modules", TargetModules(model, lora)},
      {"task_type", "CAUSAL_LM"}};
  return config.dump(2) + "\n";
}

}  // namespace fsdprun::ckpt
