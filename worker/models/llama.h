#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/models/layers.h"
#include "worker/models/llama_config.h"

namespace fsdprun::worker {

/// Causal self-attention with grouped key/value heads and rotary positions.
class LlamaAttention : public torch::nn::Module {
 public:
  LlamaAttention(const LlamaConfig& config, const ParameterFactory& factory);
  /// x: [batch, length, hidden]; cos, sin: [1, length, head_dim].
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

 private:
  int64_t head_dim_;
  int64_t groups_;
  std::shared_ptr<Linear> q_proj_, k_proj_, v_proj_, o_proj_;
};

/// SwiGLU: down(silu(gate(x)) * up(x)).
class LlamaMlp : public torch::nn::Module {
 public:
  LlamaMlp(const LlamaConfig& config, const ParameterFactory& factory);
  at::Tensor forward(const at::Tensor& x);

 private:
  std::shared_ptr<Linear> gate_proj_, up_proj_, down_proj_;
};

/// One decoder layer, pre-norm.
class LlamaBlock : public torch::nn::Module {
 public:
  LlamaBlock(const LlamaConfig& config, const ParameterFactory& factory);
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

 private:
  std::shared_ptr<LlamaAttention> self_attn_;
  std::shared_ptr<LlamaMlp> mlp_;
  std::shared_ptr<RmsNorm> input_layernorm_, post_attention_layernorm_;
};

/// Calls one block; the trainer wraps it in activation checkpointing.
using BlockCall = std::function<at::Tensor(const fsdp::Unit<LlamaBlock>& block, const at::Tensor& x,
                                           const at::Tensor& cos, const at::Tensor& sin)>;

/// LlamaForCausalLM with Hugging Face's operations in the same order, so that the same weights give
/// the same bits, and with the same parameter names and order
/// ("model.layers.0.self_attn.q_proj.weight", ...). A tied head is the embedding and has no name of
/// its own.
class Llama : public torch::nn::Module {
 public:
  Llama(const LlamaConfig& config, const ParameterFactory& factory);

  /// tokens: int64 [batch, length] -> logits [batch, length, vocab_size].
  at::Tensor forward(const at::Tensor& tokens);

  /// Shards every block as its own unit and the rest as the root unit.
  fsdp::FSDPModule Shard(const fsdp::FullyShardOptions& blocks,
                         const fsdp::FullyShardOptions& root);
  void SetBlockCall(BlockCall call) { block_call_ = std::move(call); }

  const LlamaConfig& config() const { return config_; }
  const std::vector<fsdp::Unit<LlamaBlock>>& blocks() const { return blocks_; }

 private:
  void RefreshTables(int64_t length, at::Device device);

  LlamaConfig config_;
  std::shared_ptr<Embedding> embed_tokens_;
  std::vector<fsdp::Unit<LlamaBlock>> blocks_;
  std::shared_ptr<RmsNorm> norm_;
  std::shared_ptr<Linear> lm_head_;  // null when tied
  BlockCall block_call_;
  /// Tables for the longest sequence so far.
  at::Tensor cos_;
  at::Tensor sin_;
};

/// Initialises the parameter `fqn` in `full` with `generator`: ones for norms, zeros for biases and
/// the padding token's embedding, else normal(0, initializer_range). Called in registration order
/// with one generator it gives the same model at any world size.
void InitLlamaParameter(const LlamaConfig& config, const std::string& fqn, at::Tensor full,
                        const at::Generator& generator);

/// Mean cross entropy in float32. logits: [batch, length, vocab], targets: int64 [batch, length].
at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace fsdprun::worker
