#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/models/model_config.h"

namespace fsdprun {

// Note [Adapters]
// LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685) leaves the weights W of a model, the
// base, as they are, and trains for some of its linear layers
//
//   y = W x + alpha / rank * B (A x)      A: [rank, in_features], B: [out_features, rank]
//
// A starts as PEFT's does, from the uniform distribution of kaiming_uniform_(a=sqrt(5)), which is
// that of nn.Linear: +-1 / sqrt(in_features); B starts with zeros, so that training begins with the
// base. The names are PEFT's without its prefix: "<layer>.lora_A.weight", "<layer>.lora_B.weight".

/// LoraConfig::targets with this word alone: all linear layers of the blocks.
inline constexpr char kAllLinear[] = "all-linear";

/// No adapter has as many; keeps products of sizes inside int64.
inline constexpr int64_t kMaxLoraRank = int64_t{1} << 16;

/// The adapters of a model, in PEFT's terms.
struct LoraConfig {
  /// 0: none.
  int64_t rank = 0;
  double alpha = 16;
  /// Which layers have one: those whose name is one of these, or ends with a dot and one of these.
  std::vector<std::string> targets = {kAllLinear};

  bool is_on() const { return rank > 0; }
  /// Precondition: is_on().
  double scale() const { return alpha / static_cast<double>(rank); }
};

/// Of a section "lora" of a configuration, as a checkpoint has it; an empty object has no adapters.
/// `source` names it in errors. Errors: ConfigError naming a key that has no meaning.
LoraConfig ParseLora(const Json& section, const std::string& source);

/// The linear layers of the model's blocks, in the order of its weights:
/// "model.layers.0.self_attn.q_proj". The head is none of them.
std::vector<std::string> LinearLayers(const ModelConfig& model);

/// Those of them that have an adapter, in the same order. Errors: ConfigError for a target that is
/// no layer's name, with those that are.
std::vector<std::string> AdaptedLayers(const ModelConfig& model, const LoraConfig& lora);

/// The targets as PEFT writes them: sorted, each once, and instead of kAllLinear the last parts of
/// the layers' names. Equal for equal layers, unless they were named in different ways.
std::vector<std::string> TargetModules(const ModelConfig& model, const LoraConfig& lora);

/// The adapters' weights: A and B of one layer after the other. Errors: as AdaptedLayers's.
std::vector<WeightShape> AdapterWeights(const ModelConfig& model, const LoraConfig& lora);

/// Whether a parameter of this name is an adapter's.
bool IsAdapterWeight(std::string_view name);

/// Whether the weights of the model's linear layers are stored as [in_features, out_features]
/// (Conv1D in transformers, fan_in_fan_out in PEFT).
bool HasTransposedLayers(const ModelConfig& model);

}  // namespace fsdprun
