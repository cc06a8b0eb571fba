#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/models/causal_lm.h"
#include "worker/models/layers.h"

namespace fsdprun::worker {

/// Causal self-attention; queries, keys and values come from one projection.
class Gpt2Attention : public torch::nn::Module {
 public:
  /// `layer` counts from 0.
  Gpt2Attention(const Gpt2Config& config, int64_t layer, const LayerFactory& factory);
  /// x: [batch, length, n_embd] -> the same. `cache`: of the tokens before, or null.
  at::Tensor forward(const at::Tensor& x, LayerCache* cache);

 private:
  int64_t n_head_;
  /// Of the scores.
  double scale_;
  std::shared_ptr<TransposedLinear> c_attn_, c_proj_;
};

/// c_proj(gelu(c_fc(x))), with the approximation of GELU by tanh.
class Gpt2Mlp : public torch::nn::Module {
 public:
  Gpt2Mlp(const Gpt2Config& config, const LayerFactory& factory);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<TransposedLinear> c_fc_, c_proj_;
};

/// One layer, pre-norm.
class Gpt2Block : public torch::nn::Module {
 public:
  Gpt2Block(const Gpt2Config& config, int64_t layer, const LayerFactory& factory);
  /// As Gpt2Attention's.
  at::Tensor forward(const at::Tensor& x, LayerCache* cache = nullptr);

 private:
  std::shared_ptr<LayerNorm> ln_1_;
  std::shared_ptr<Gpt2Attention> attn_;
  std::shared_ptr<LayerNorm> ln_2_;
  std::shared_ptr<Gpt2Mlp> mlp_;
};

/// GPT2LMHeadModel without dropout. Positions are learned.
class Gpt2 : public CausalLm {
 public:
  Gpt2(const ModelConfig& model, const Gpt2Config& config, const LayerFactory& factory);

  void InitParameter(const std::string& fqn, at::Tensor full,
                     const at::Generator& generator) const override;

 protected:
  std::vector<std::shared_ptr<torch::nn::Module>> Blocks() const override;
  at::Tensor Hidden(const at::Tensor& tokens, KeyValueCache* cache) override;
  const at::Tensor& HeadWeight() const override;
  at::Tensor ToLogits(const at::Tensor& hidden) override;

 private:
  Gpt2Config network_;
  std::shared_ptr<Embedding> wte_, wpe_;
  std::vector<fsdp::Unit<Gpt2Block>> blocks_;
  std::shared_ptr<LayerNorm> ln_f_;
  std::shared_ptr<Linear> lm_head_;  // null when tied
};

}  // namespace fsdprun::worker
