#pragma once

#include <ATen/ATen.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/linear.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace fsdp::testing {

struct ToyConfig {
  int64_t vocab = 29;
  int64_t width = 15;
  int64_t hidden = 33;
  int64_t blocks = 3;
  bool unmaterialized = false;
  bool frozen_first_weight = false;
  bool use_block_twice = false;
  enum class Checkpointing { kNone, kAroundUnit, kInsideUnit } checkpointing = Checkpointing::kNone;
};

/// Large enough for windows: on 2 or 4 ranks the shards are whole pages without much padding.
inline ToyConfig wide_toy() {
  ToyConfig config;
  config.vocab = 511;
  config.width = 64;
  config.hidden = 1024;
  config.blocks = 2;
  return config;
}

inline at::Tensor parameter(at::IntArrayRef sizes, bool unmaterialized) {
  if (unmaterialized) {
    return fsdp::unmaterialized_parameter(sizes, at::kFloat, c10::kCPU);
  }
  return at::zeros(sizes);
}

struct ToyBlock : torch::nn::Module {
  explicit ToyBlock(const ToyConfig& config) : config(config) {
    up = register_parameter("up", parameter({config.hidden, config.width}, config.unmaterialized),
                            !config.frozen_first_weight);
    bias = register_parameter("bias", parameter({config.hidden}, config.unmaterialized));
    down =
        register_parameter("down", parameter({config.width, config.hidden}, config.unmaterialized));
    spare = register_parameter("spare", parameter({5, 3}, config.unmaterialized));
  }

  at::Tensor body(const at::Tensor& x) {
    at::Tensor y = x + fsdp::linear(at::gelu(fsdp::linear(x, up, bias)), down);
    return use_spare ? y + spare.sum() : y;
  }
  at::Tensor forward(at::Tensor x) {
    TORCH_CHECK(!fail, "forward was told to fail");
    if (seen_at != nullptr) {
      seen_at->push_back(up.const_data_ptr());
    }
    if (config.checkpointing == ToyConfig::Checkpointing::kInsideUnit) {
      return activation_checkpoint([this](const at::Tensor& t) { return body(t); }, x);
    }
    return body(x);
  }

  ToyConfig config;
  bool use_spare = false;
  bool fail = false;
  std::vector<const void*>* seen_at = nullptr;  // gets the weight's address of each forward
  at::Tensor up, bias, down, spare;
};

/// Embedding tied to the head, blocks between them: a language model in small.
struct ToyModel : torch::nn::Module {
  explicit ToyModel(const ToyConfig& config) : config(config) {
    embedding = register_parameter("embedding",
                                   parameter({config.vocab, config.width}, config.unmaterialized));
    gain = register_parameter("gain", parameter({config.width}, config.unmaterialized));
    head = register_parameter("head", embedding);
    for (int64_t i = 0; i < config.blocks; ++i) {
      blocks.emplace_back(std::make_shared<ToyBlock>(config));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }

  at::Tensor forward(at::Tensor tokens) {
    at::Tensor x = at::embedding(embedding, tokens);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Unit<ToyBlock>& block = blocks[i];
      if (static_cast<int64_t>(i) == skipped) {
        continue;
      }
      const bool around = config.checkpointing == ToyConfig::Checkpointing::kAroundUnit;
      x = around ? activation_checkpoint([block](const at::Tensor& t) { return block(t); }, x)
                 : block(x);
      x = config.use_block_twice ? block(x) : x;
    }
    return at::linear(x * gain, head);
  }

  ToyConfig config;
  std::vector<Unit<ToyBlock>> blocks;
  int64_t skipped = -1;  // block that is not called
  at::Tensor embedding, gain, head;
};

/// A value per element that depends on the name and the index only.
inline void initialise(const std::string& fqn, at::Tensor full) {
  const auto seed = static_cast<double>(std::hash<std::string>{}(fqn) % 97);
  const at::Tensor index = at::arange(full.numel(), at::kDouble);
  full.copy_((((index + seed) * 12.9898).sin() * 0.3 + (fqn == "gain" ? 1.0 : 0.0))
                 .to(at::kFloat)
                 .view(full.sizes()));
}

inline at::Tensor tokens_of(const ToyConfig& config, int64_t step, int64_t rank) {
  return (at::arange(24, at::kLong) * 7 + step * 5 + rank * 11)
      .remainder(config.vocab)
      .view({3, 8});
}

inline at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& tokens) {
  return at::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), tokens.roll(1, 1).flatten());
}

inline Unit<ToyModel> make_sharded(const ToyConfig& config, const FullyShardOptions& options) {
  Unit<ToyModel> model(std::make_shared<ToyModel>(config));
  for (const Unit<ToyBlock>& block : model->blocks) {
    fully_shard(block.ptr(), options);
  }
  fully_shard(model.ptr(), options);
  return model;
}

/// The same model without sharding, filled with the same values.
inline Unit<ToyModel> make_plain(ToyConfig config) {
  config.unmaterialized = false;
  Unit<ToyModel> model(std::make_shared<ToyModel>(config));
  at::NoGradGuard no_grad;
  std::map<const void*, bool> seen;
  for (auto& param : model->named_parameters()) {
    if (!seen[param.value().unsafeGetTensorImpl()]) {
      seen[param.value().unsafeGetTensorImpl()] = true;
      initialise(param.key(), param.value());
    }
  }
  return model;
}

}  // namespace fsdp::testing
