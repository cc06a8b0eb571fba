#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <memory>
#include <string>

#include "worker/models/causal_lm.h"

namespace fsdprun::worker {

inline constexpr const char* kFamilies[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3"};

/// The config.json of a small model of the family; where it can have them, with a window of 7 and
/// two heads of queries to one of keys.
inline Json DocumentOf(const std::string& family) {
  if (family == "gpt2") {
    return {{"model_type", "gpt2"}, {"vocab_size", 64}, {"n_embd", 32},
            {"n_layer", 2},         {"n_head", 4},      {"n_positions", 24}};
  }
  return {{"model_type", family},
          {"vocab_size", 64},
          {"hidden_size", 32},
          {"num_hidden_layers", 2},
          {"intermediate_size", 48},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"sliding_window", 7},
          {"use_sliding_window", true},
          {"max_window_layers", 1},
          {"head_dim", 8}};
}

inline std::shared_ptr<CausalLm> MakeModel(const Json& document,
                                           Kernels kernels = Kernels::kReference) {
  return MakeCausalLm(ParseModelConfig(document, "config.json"), LayerFactory{.kernels = kernels});
}

inline std::shared_ptr<CausalLm> MakeInitialisedModel(const Json& document,
                                                      Kernels kernels = Kernels::kReference) {
  auto model = MakeModel(document, kernels);
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(3);
  for (const auto& parameter : model->named_parameters()) {
    model->InitParameter(parameter.key(), parameter.value(), generator);
  }
  return model;
}

}  // namespace fsdprun::worker
