#include "worker/config/sections/checks.h"
#include "worker/config/sections/sections.h"

namespace fsdprun::worker {

std::vector<ConfigKey> ModelKeys() {
  using enum ValueKind;
  return {
      {"model.config", kString, "", "a path",
       "HF model directory or its config.json (llama, qwen2, qwen3, mistral, gpt2)", IsNotEmpty},
      {"model.weights", kString, "\"none\"", "\"none\" or a path",
       "HF directory with model.safetensors (or its index), such a file, or a checkpoint; none: "
       "random weights",
       IsNotEmpty},
      {"model.seed", kInteger, "0", "an integer from 0 to 2^63-1",
       "seed of the random weights; the same at every world size", IsSeed},
      {"model.kernels", kString, "\"reference\"", "\"reference\" or \"fused\"",
       "reference: transformers' operations in their order, for the same bits; fused: the same "
       "functions in fewer passes over memory",
       [](const Json& value) {
         return IsOneOf(value, {"reference", "fused"});
       }},
      {"model.on_change", kString, "\"refuse\"", "\"refuse\" or \"warn\"",
       "resuming with a model that computes something else from the checkpoint's weights, such as "
       "another rope_theta; warn: continue with it",
       [](const Json& value) {
         return IsOneOf(value, {"refuse", "warn"});
       }},
  };
}

}  // namespace fsdprun::worker
