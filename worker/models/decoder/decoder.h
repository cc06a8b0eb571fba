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

/// Causal self-attention with grouped key/value heads and rotary positions.
class DecoderAttention : public torch::nn::Module {
 public:
  DecoderAttention(const DecoderConfig& config, const LayerFactory& factory);
  /// x: [batch, length, hidden]; cos, sin: [1, length, head_dim]; mask: bool [length, all tokens],
  /// true where a row sees a column; undefined: it sees all up to itself. `cache`: of the tokens
  /// before, or null.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     const at::Tensor& mask, LayerCache* cache);

 private:
  /// [batch, heads, length, head_dim].
  at::Tensor Rotated(const at::Tensor& heads, const at::Tensor& cos, const at::Tensor& sin) const;

  Kernels kernels_;
  int64_t head_dim_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<RmsNorm> q_norm_, k_norm_;  // null without norms of heads
};

/// SwiGLU: down(silu(gate(x)) * up(x)).
class DecoderMlp : public torch::nn::Module {
 public:
  DecoderMlp(const DecoderConfig& config, const LayerFactory& factory);
  at::Tensor forward(const at::Tensor& x);

 private:
  Kernels kernels_;
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

/// One decoder layer, pre-norm.
class DecoderBlock : public torch::nn::Module {
 public:
  DecoderBlock(const DecoderConfig& config, const LayerFactory& factory);
  /// As DecoderAttention's.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                     const at::Tensor& mask = {}, LayerCache* cache = nullptr);

 private:
  std::shared_ptr<DecoderAttention> self_attn_;
  std::shared_ptr<DecoderMlp> mlp_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
};

/// Llama, Qwen and Mistral: LlamaForCausalLM and its kin with Hugging Face's operations in the same
/// order, so that the same weights give the same bits.
class Decoder : public CausalLm {
 public:
  Decoder(const ModelConfig& model, const DecoderConfig& config, const LayerFactory& factory);

  void InitParameter(const std::string& fqn, at::Tensor full,
                     const at::Generator& generator) const override;

 protected:
  std::vector<std::shared_ptr<torch::nn::Module>> Blocks() const override;
  at::Tensor Hidden(const at::Tensor& tokens, KeyValueCache* cache) override;
  const at::Tensor& HeadWeight() const override;
  at::Tensor ToLogits(const at::Tensor& hidden) override;

 private:
  void RefreshTables(int64_t length, at::Device device);
  /// The mask of block `i` for `length` tokens after `before` others; undefined where each sees all
  /// up to itself.
  at::Tensor MaskOf(size_t i, int64_t before, int64_t length, at::Device device);

  DecoderConfig network_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::vector<fsdp::Unit<DecoderBlock>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> lm_head_;  // null when tied
  /// Tables for the longest sequence so far, or that a cache so far has room for.
  at::Tensor cos_;
  at::Tensor sin_;
  /// The window's mask for the last sequence, and how many tokens were before it.
  at::Tensor window_mask_;
  int64_t window_mask_before_ = 0;
};

}  // namespace fsdprun::worker
