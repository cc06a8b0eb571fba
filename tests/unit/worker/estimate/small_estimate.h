#pragma once

#include <string>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {

/// A model whose numbers can be computed by hand: three blocks of four matrices of 64 x 64, three
/// of 64 x 128 and two norms, an embedding and a head of 256 x 64, and a norm.
inline ModelConfig EstimatedModel(const std::string& more = "") {
  return ParseModelConfig(
      ParseStrictJson(R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
                          "intermediate_size": 128, "num_hidden_layers": 3,
                          "num_attention_heads": 2, "max_position_embeddings": 64)" +
                          more + "}",
                      "model"),
      "model");
}

/// Two windows of 16 tokens in a forward.
inline TrainConfig EstimatedConfig(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.config=m", R"(data.train=["t"])", "data.seq_len=16",
                                  "train.micro_batch_size=2"};
  all.insert(all.end(), settings.begin(), settings.end());
  return ParseConfig(ResolveConfig("", all));
}

}  // namespace fsdprun::worker
