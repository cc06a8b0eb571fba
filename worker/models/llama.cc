#include "worker/models/llama.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "worker/models/rope.h"

namespace fsdprun::worker {
namespace {

/// [batch, heads, length, dim] -> [batch, heads * groups, length, dim], each head `groups` times.
at::Tensor RepeatHeads(const at::Tensor& x, int64_t groups) {
  if (groups == 1) {
    return x;
  }
  const int64_t batch = x.size(0), heads = x.size(1), length = x.size(2), dim = x.size(3);
  return x.unsqueeze(2)
      .expand({batch, heads, groups, length, dim})
      .reshape({batch, heads * groups, length, dim});
}

}  // namespace

LlamaAttention::LlamaAttention(const LlamaConfig& config, const ParameterFactory& factory)
    : head_dim_(config.head_dim), groups_(config.num_attention_heads / config.num_key_value_heads) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key_value = config.num_key_value_heads * config.head_dim;
  const auto make = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, config.attention_bias, factory));
  };
  q_proj_ = make("q_proj", config.hidden_size, query);
  k_proj_ = make("k_proj", config.hidden_size, key_value);
  v_proj_ = make("v_proj", config.hidden_size, key_value);
  o_proj_ = make("o_proj", query, config.hidden_size);
}

at::Tensor LlamaAttention::forward(const at::Tensor& x, const at::Tensor& cos,
                                   const at::Tensor& sin) {
  const int64_t batch = x.size(0), length = x.size(1);
  const auto heads = [&](const std::shared_ptr<Linear>& projection) {
    return projection->forward(x).view({batch, length, -1, head_dim_}).transpose(1, 2);
  };
  const at::Tensor q = heads(q_proj_);
  const at::Tensor k = heads(k_proj_);
  const at::Tensor v = heads(v_proj_);
  const at::Tensor q_rotated = ApplyRope(q, cos, sin);
  const at::Tensor k_rotated = ApplyRope(k, cos, sin);
  const at::Tensor attended = at::scaled_dot_product_attention(
      q_rotated, RepeatHeads(k_rotated, groups_), RepeatHeads(v, groups_), /*attn_mask=*/{},
      /*dropout_p=*/0.0, /*is_causal=*/true);
  return o_proj_->forward(attended.transpose(1, 2).contiguous().reshape({batch, length, -1}));
}

LlamaMlp::LlamaMlp(const LlamaConfig& config, const ParameterFactory& factory) {
  const auto make = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, config.mlp_bias, factory));
  };
  gate_proj_ = make("gate_proj", config.hidden_size, config.intermediate_size);
  up_proj_ = make("up_proj", config.hidden_size, config.intermediate_size);
  down_proj_ = make("down_proj", config.intermediate_size, config.hidden_size);
}

at::Tensor LlamaMlp::forward(const at::Tensor& x) {
  const at::Tensor gate = at::silu(gate_proj_->forward(x));
  return down_proj_->forward(gate * up_proj_->forward(x));
}

LlamaBlock::LlamaBlock(const LlamaConfig& config, const ParameterFactory& factory) {
  self_attn_ = register_module("self_attn", std::make_shared<LlamaAttention>(config, factory));
  mlp_ = register_module("mlp", std::make_shared<LlamaMlp>(config, factory));
  const auto norm = [&](const char* name) {
    return register_module(
        name, std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps, factory));
  };
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
}

at::Tensor LlamaBlock::forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor attended = x + self_attn_->forward(input_layernorm_->forward(x), cos, sin);
  return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
}

Llama::Llama(const LlamaConfig& config, const ParameterFactory& factory) : config_(config) {
  // Hugging Face's tree: model.{embed_tokens, layers.N, norm}, lm_head.
  auto body = register_module("model", std::make_shared<torch::nn::Module>("LlamaModel"));
  embed_tokens_ = body->register_module(
      "embed_tokens", std::make_shared<Embedding>(config.vocab_size, config.hidden_size,
                                                  config.padding_token, factory));
  auto layers = body->register_module("layers", std::make_shared<torch::nn::Module>("LlamaLayers"));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks_.emplace_back(std::make_shared<LlamaBlock>(config, factory));
    layers->register_module(std::to_string(i), blocks_.back().ptr());
  }
  norm_ = body->register_module(
      "norm", std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps, factory));
  if (!config.tie_word_embeddings) {
    lm_head_ =
        register_module("lm_head", std::make_shared<Linear>(config.hidden_size, config.vocab_size,
                                                            /*has_bias=*/false, factory));
  }
}

void Llama::RefreshTables(int64_t length, at::Device device) {
  if (!cos_.defined() || cos_.size(1) < length || cos_.device() != device) {
    std::tie(cos_, sin_) = RopeTables(config_, length, device);
  }
}

at::Tensor Llama::forward(const at::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  RefreshTables(length, tokens.device());
  at::Tensor x = embed_tokens_->forward(tokens);
  const at::Tensor cos = cos_.slice(1, 0, length).to(x.scalar_type());
  const at::Tensor sin = sin_.slice(1, 0, length).to(x.scalar_type());
  for (const fsdp::Unit<LlamaBlock>& block : blocks_) {
    x = block_call_ ? block_call_(block, x, cos, sin) : block(x, cos, sin);
  }
  x = norm_->forward(x);
  return lm_head_ ? lm_head_->forward(x) : at::linear(x, embed_tokens_->weight);
}

fsdp::FSDPModule Llama::Shard(const fsdp::FullyShardOptions& blocks,
                              const fsdp::FullyShardOptions& root) {
  for (const fsdp::Unit<LlamaBlock>& block : blocks_) {
    fsdp::fully_shard(block.ptr(), blocks);
  }
  return fsdp::fully_shard(shared_from_this(), root);
}

void InitLlamaParameter(const LlamaConfig& config, const std::string& fqn, at::Tensor full,
                        const at::Generator& generator) {
  const at::NoGradGuard no_grad;
  if (fqn.ends_with("norm.weight")) {
    full.fill_(1.0);
  } else if (fqn.ends_with(".bias")) {
    full.zero_();
  } else {
    full.normal_(0.0, config.initializer_range, generator);
    if (config.padding_token && fqn == "model.embed_tokens.weight") {
      full[*config.padding_token].zero_();
    }
  }
}

at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}));
}

}  // namespace fsdprun::worker
