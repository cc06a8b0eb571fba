#include "formats/models/lora.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <variant>

#include "formats/models/block_names.h"
#include "formats/models/config_fields.h"

namespace fsdprun {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kLoraA = ".lora_A";
constexpr std::string_view kLoraB = ".lora_B";

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

bool IsNamedBy(const std::string& layer, const std::string& target) {
  return target == kAllLinear || layer == target ||
         (layer.size() > target.size() && layer.ends_with(target) &&
          layer[layer.size() - target.size() - 1] == '.');
}

/// "down_proj, gate_proj, ..."
std::string Candidates(const std::vector<std::string>& layers) {
  std::set<std::string> names;
  for (const std::string& layer : layers) {
    names.insert(LastPart(layer));
  }
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

void CheckTargets(const std::vector<std::string>& layers, const LoraConfig& lora) {
  for (const std::string& target : lora.targets) {
    if (std::none_of(layers.begin(), layers.end(),
                     [&target](const std::string& layer) { return IsNamedBy(layer, target); })) {
      throw ConfigError("configuration: lora.targets has " + Excerpt(Json(target)) +
                        ": expected \"all-linear\", or names of linear layers in the model's "
                        "blocks: " +
                        Candidates(layers) + "; or one with what stands before it, e.g. " +
                        Excerpt(Json(layers.front())));
    }
  }
}

}  // namespace

LoraConfig ParseLora(const Json& section, const std::string& source) {
  const Fields fields(section, source, "lora.");
  LoraConfig lora;
  if (fields.Has("rank")) {
    const std::optional<int64_t> rank = fields.Integer("rank");
    if (!rank || *rank < 0 || *rank > kMaxLoraRank) {
      fields.Refuse("rank", "an integer from 0 to " + std::to_string(kMaxLoraRank));
    }
    lora.rank = *rank;
  }
  lora.alpha = fields.Positive("alpha", lora.alpha);
  if (!fields.Has("targets")) {
    return lora;
  }
  const Json& targets = fields.Value("targets");
  const bool is_list = targets.is_array() && !targets.empty() &&
                       std::all_of(targets.begin(), targets.end(), [](const Json& target) {
                         return target.is_string() && target != "";
                       });
  if (!is_list && targets != kAllLinear) {
    fields.Refuse("targets", "\"all-linear\" or a list of names");
  }
  lora.targets =
      is_list ? targets.get<std::vector<std::string>>() : std::vector{std::string(kAllLinear)};
  return lora;
}

std::vector<std::string> LinearLayers(const ModelConfig& model) {
  std::vector<std::string> layers;
  for (const WeightShape& weight : model.weights) {
    if (weight.shape.size() == 2 && weight.name.ends_with(kWeight) && BlockOf(weight.name)) {
      layers.push_back(weight.name.substr(0, weight.name.size() - kWeight.size()));
    }
  }
  return layers;
}

std::vector<std::string> AdaptedLayers(const ModelConfig& model, const LoraConfig& lora) {
  const std::vector<std::string> layers = LinearLayers(model);
  CheckTargets(layers, lora);
  std::vector<std::string> adapted;
  std::copy_if(layers.begin(), layers.end(), std::back_inserter(adapted),
               [&lora](const std::string& layer) {
                 return std::any_of(
                     lora.targets.begin(), lora.targets.end(),
                     [&layer](const std::string& target) { return IsNamedBy(layer, target); });
               });
  return adapted;
}

std::vector<std::string> TargetModules(const ModelConfig& model, const LoraConfig& lora) {
  std::set<std::string> names;
  for (const std::string& target : lora.targets) {
    if (target != kAllLinear) {
      names.insert(target);
      continue;
    }
    for (const std::string& layer : LinearLayers(model)) {
      names.insert(LastPart(layer));
    }
  }
  return {names.begin(), names.end()};
}

std::vector<WeightShape> AdapterWeights(const ModelConfig& model, const LoraConfig& lora) {
  std::map<std::string, const std::vector<int64_t>*> shapes;
  for (const WeightShape& weight : model.weights) {
    shapes[weight.name] = &weight.shape;
  }
  std::vector<WeightShape> weights;
  const bool is_transposed = HasTransposedLayers(model);
  for (const std::string& layer : AdaptedLayers(model, lora)) {
    const std::vector<int64_t>& shape = *shapes.at(layer + std::string(kWeight));
    const int64_t in = is_transposed ? shape[0] : shape[1];
    const int64_t out = is_transposed ? shape[1] : shape[0];
    weights.push_back({layer + std::string(kLoraA) + std::string(kWeight), {lora.rank, in}});
    weights.push_back({layer + std::string(kLoraB) + std::string(kWeight), {out, lora.rank}});
  }
  return weights;
}

bool IsAdapterWeight(std::string_view name) {
  if (!name.ends_with(kWeight)) {
    return false;
  }
  name.remove_suffix(kWeight.size());
  return name.ends_with(kLoraA) || name.ends_with(kLoraB);
}

bool HasTransposedLayers(const ModelConfig& model) {
  return std::holds_alternative<Gpt2Config>(model.network);
}

}  // namespace fsdprun
