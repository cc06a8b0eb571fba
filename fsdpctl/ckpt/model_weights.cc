#include "fsdpctl/ckpt/model_weights.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/models/model_config.h"
#include "formats/tensors/compare.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/amounts.h"

namespace fsdprun::ckpt {
namespace {

using fsdp::archive::Error;

constexpr size_t kShownNames = 3;

/// Whether the network is a language model with its head. Another one of the same family has other
/// weights.
bool IsCausalLm(const Json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->empty()) {
    return true;
  }
  return std::any_of(found->begin(), found->end(), [](const Json& name) {
    return name.is_string() &&
           (std::string_view(name.get_ref<const std::string&>()).ends_with("ForCausalLM") ||
            std::string_view(name.get_ref<const std::string&>()).ends_with("LMHeadModel"));
  });
}

/// nullopt: `reason` says why its weights are not known here.
std::optional<ModelConfig> KnownModel(const Json& config, const std::string& source,
                                      std::string& reason) {
  try {
    ModelConfig model = ParseModelConfig(config, source);
    if (IsCausalLm(config)) {
      return model;
    }
    reason = source + ": architectures is " + Excerpt(config.at("architectures"));
  } catch (const ConfigError& error) {
    reason = error.what();
  }
  return std::nullopt;
}

/// Compares a source with a model, weight by weight.
class Matching {
 public:
  Matching(TensorSource& source, std::string path, std::string config_source)
      : source_(source),
        weights_(source.Weights()),
        path_(std::move(path)),
        config_source_(std::move(config_source)) {}

  WeightNameMap Run(const ModelConfig& model) {
    WeightNameMap matched;
    std::vector<std::string> missing;
    for (const WeightShape& weight : model.weights) {
      const auto found = Find(weight.name, model.names);
      if (found == weights_.end()) {
        missing.push_back(weight.name);
        continue;
      }
      CheckShape(weight, found->second);
      matched[weight.name] = found->second;
      weights_.erase(found);
    }
    if (!missing.empty()) {
      Refuse("it has no ", missing);
    }
    DropOthers(model.names, matched);
    return matched;
  }

 private:
  WeightNameMap::iterator Find(const std::string& name, const WeightNames& names) {
    const auto found = weights_.find(name);
    const bool has_shorter = found == weights_.end() && !names.body_prefix.empty() &&
                             name.starts_with(names.body_prefix);
    return has_shorter ? weights_.find(name.substr(names.body_prefix.size())) : found;
  }

  void CheckShape(const WeightShape& weight, const std::string& key) const {
    const std::vector<int64_t>& shape = source_.tensors().at(key).shape;
    if (shape != weight.shape) {
      throw Error(Start() + key + " has the shape " + ShapeText(shape) + ", that of the model " +
                  ShapeText(weight.shape) + End());
    }
  }

  /// What the model has no parameter for must be a tied head, or a buffer that it computes.
  void DropOthers(const WeightNames& names, const WeightNameMap& matched) {
    if (!names.tied_head.empty() && weights_.contains(names.tied_head)) {
      WeightNameMap both = {{names.tied_head, weights_.at(names.tied_head)},
                            {names.embedding, matched.at(names.embedding)}};
      DropTiedHead(source_, path_, names.tied_head, names.embedding, both);
      weights_.erase(names.tied_head);
    }
    std::vector<std::string> others;
    for (const auto& [name, key] : weights_) {
      const bool is_computed =
          std::any_of(names.ignored_suffixes.begin(), names.ignored_suffixes.end(),
                      [&name = name](const std::string& end) { return name.ends_with(end); });
      if (!is_computed) {
        others.push_back(key);
      }
    }
    if (!others.empty()) {
      Refuse("the model has no ", others);
    }
  }

  std::string Start() const {
    return path_ + " is not of the model that " + config_source_ + " describes: ";
  }
  static std::string End() {
    return "; copy all of its files, or give the configuration of its own model";
  }

  [[noreturn]] void Refuse(const std::string& what, const std::vector<std::string>& names) const {
    std::string text = Start() + what;
    for (size_t i = 0; i < std::min(names.size(), kShownNames); ++i) {
      text += (i == 0 ? "" : ", ") + names[i];
    }
    if (names.size() > kShownNames) {
      text += " and " + std::to_string(names.size() - kShownNames) + " more";
    }
    throw Error(text + End());
  }

  TensorSource& source_;
  WeightNameMap weights_;  // that were not matched yet
  std::string path_;
  std::string config_source_;
};

}  // namespace

ModelWeights WeightsOfModel(TensorSource& source, const std::string& path, const Json& config,
                            const std::string& config_source) {
  ModelWeights result;
  const std::optional<ModelConfig> model = KnownModel(config, config_source, result.unchecked);
  result.weights = model ? Matching(source, path, config_source).Run(*model) : source.Weights();
  return result;
}

void DropTiedHead(TensorSource& source, const std::string& path, const std::string& head,
                  const std::string& embedding, WeightNameMap& weights) {
  const auto head_key = weights.find(head);
  const auto embedding_key = weights.find(embedding);
  if (head_key == weights.end() || embedding_key == weights.end()) {
    return;
  }
  const TensorFacts& a = source.tensors().at(head_key->second);
  const TensorFacts& b = source.tensors().at(embedding_key->second);
  if (a.dtype != b.dtype || a.shape != b.shape ||
      CompareTensors(source, head_key->second, source, embedding_key->second).different > 0) {
    throw Error(path + ": " + head + " differs from " + embedding +
                ", but the model's configuration says tie_word_embeddings; give one that does not");
  }
  weights.erase(head_key);
}

}  // namespace fsdprun::ckpt
