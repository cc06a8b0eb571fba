#include "worker/models/decoder/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "worker/models/decoder/grouped_attention.h"
#include "worker/models/fused/ops.h"
#include "worker/models/rope.h"

namespace fsdprun::worker {
namespace {

/// Position q sees positions k with q - window < k <= q, window 0: all k <= q. The rows are the
/// last `length` positions of before + length; bool [length, before + length].
at::Tensor SeenMask(int64_t before, int64_t length, int64_t window, at::Device device) {
  const at::Tensor seen =
      at::ones({length, before + length}, at::TensorOptions(at::kBool).device(device)).tril(before);
  return window == 0 ? seen : seen.logical_and(seen.tril(before - window).logical_not());
}

}  // namespace

DecoderAttention::DecoderAttention(const DecoderConfig& config, const LayerFactory& factory)
    : kernels_(factory.kernels), head_dim_(config.head_dim) {
  const int64_t query = config.num_attention_heads * config.head_dim;
  const int64_t key_value = config.num_key_value_heads * config.head_dim;
  const auto make = [&](const char* name, int64_t in, int64_t out, bool has_bias) {
    return register_module(name, std::make_shared<Linear>(in, out, has_bias, factory));
  };
  q_proj_ = make("q_proj", config.hidden_size, query, config.has_qkv_bias);
  k_proj_ = make("k_proj", config.hidden_size, key_value, config.has_qkv_bias);
  v_proj_ = make("v_proj", config.hidden_size, key_value, config.has_qkv_bias);
  o_proj_ = make("o_proj", query, config.hidden_size, config.has_output_bias);
  if (config.has_head_norms) {
    const auto norm = [&](const char* name) {
      return register_module(
          name, std::make_shared<RmsNorm>(config.head_dim, config.rms_norm_eps, factory));
    };
    q_norm_ = norm("q_norm");
    k_norm_ = norm("k_norm");
  }
}

at::Tensor DecoderAttention::Rotated(const at::Tensor& heads, const at::Tensor& cos,
                                     const at::Tensor& sin) const {
  return kernels_ == Kernels::kFused ? fused::Rope(heads, cos, sin).transpose(1, 2)
                                     : ApplyRope(heads.transpose(1, 2), cos, sin);
}

at::Tensor DecoderAttention::forward(const at::Tensor& x, const at::Tensor& cos,
                                     const at::Tensor& sin, const at::Tensor& mask,
                                     LayerCache* cache) {
  const int64_t batch = x.size(0), length = x.size(1);
  const auto heads = [&](const std::shared_ptr<Linear>& projection,
                         const std::shared_ptr<RmsNorm>& norm) {
    const at::Tensor split = projection->forward(x).view({batch, length, -1, head_dim_});
    return norm ? norm->forward(split) : split;
  };
  const at::Tensor q = Rotated(heads(q_proj_, q_norm_), cos, sin);
  at::Tensor k = Rotated(heads(k_proj_, k_norm_), cos, sin);
  at::Tensor v = heads(v_proj_, nullptr).transpose(1, 2);
  if (cache != nullptr) {
    std::tie(k, v) = cache->Append(k, v);
  }
  const auto given_mask = mask.defined() ? std::optional(mask) : std::nullopt;
  // One token sees all, as does each without a mask all up to itself where there are as many keys.
  const bool is_causal = !given_mask && length > 1;
  const at::Tensor attended = Attend({q, k, v, given_mask, is_causal},
                                     /*repeats=*/kernels_ == Kernels::kReference);
  return o_proj_->forward(attended.transpose(1, 2).contiguous().reshape({batch, length, -1}));
}

DecoderMlp::DecoderMlp(const DecoderConfig& config, const LayerFactory& factory)
    : kernels_(factory.kernels) {
  const auto make = [&](const char* name, int64_t in, int64_t out) {
    return register_module(name, std::make_shared<Linear>(in, out, config.mlp_bias, factory));
  };
  gate_proj_ = make("gate_proj", config.hidden_size, config.intermediate_size);
  up_proj_ = make("up_proj", config.hidden_size, config.intermediate_size);
  down_proj_ = make("down_proj", config.intermediate_size, config.hidden_size);
}

at::Tensor DecoderMlp::forward(const at::Tensor& x) {
  const at::Tensor gate = gate_proj_->forward(x);
  if (kernels_ == Kernels::kFused) {
    return down_proj_->forward(fused::Swiglu(gate, up_proj_->forward(x)));
  }
  const at::Tensor opened = at::silu(gate);
  return down_proj_->forward(opened * up_proj_->forward(x));
}

DecoderBlock::DecoderBlock(const DecoderConfig& config, const LayerFactory& factory) {
  self_attn_ = register_module("self_attn", std::make_shared<DecoderAttention>(config, factory));
  mlp_ = register_module("mlp", std::make_shared<DecoderMlp>(config, factory));
  const auto norm = [&](const char* name) {
    return register_module(
        name, std::make_shared<RmsNorm>(config.hidden_size, config.rms_norm_eps, factory));
  };
  input_layernorm_ = norm("input_layernorm");
  post_attention_layernorm_ = norm("post_attention_layernorm");
}

at::Tensor DecoderBlock::forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                                 const at::Tensor& mask, LayerCache* cache) {
  const at::Tensor attended =
      x + self_attn_->forward(input_layernorm_->forward(x), cos, sin, mask, cache);
  return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
}

Decoder::Decoder(const ModelConfig& model, const DecoderConfig& config, const LayerFactory& factory)
    : CausalLm(model, factory), network_(config) {
  // Hugging Face's tree: model.{embed_tokens, layers.N, norm}, lm_head.
  auto body = register_module("model", std::make_shared<torch::nn::Module>("DecoderBody"));
  embed_tokens_ = body->register_module(
      "embed_tokens", std::make_shared<Embedding>(config.vocab_size, config.hidden_size,
                                                  config.padding_token, factory));
  auto layers =
      body->register_module("layers", std::make_shared<torch::nn::Module>("DecoderLayers"));
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    blocks_.emplace_back(std::make_shared<DecoderBlock>(config, factory));
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

void Decoder::RefreshTables(int64_t length, at::Device device) {
  if (!cos_.defined() || cos_.size(1) < length || cos_.device() != device) {
    std::tie(cos_, sin_) = RopeTables(network_, length, device);
  }
}

at::Tensor Decoder::MaskOf(size_t i, int64_t before, int64_t length, at::Device device) {
  const int64_t window = network_.layer_windows.empty() ? 0 : network_.layer_windows[i];
  const bool is_windowed = window > 0 && before + length > window;
  if (!is_windowed && (before == 0 || length == 1)) {
    return {};
  }
  if (!is_windowed) {
    return SeenMask(before, length, 0, device);
  }
  // All layers that have a window have the same.
  if (!window_mask_.defined() || window_mask_.size(0) != length || window_mask_before_ != before ||
      window_mask_.device() != device) {
    window_mask_ = SeenMask(before, length, window, device);
    window_mask_before_ = before;
  }
  return window_mask_;
}

at::Tensor Decoder::Hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t before = cache == nullptr ? 0 : cache->length(), length = tokens.size(1);
  // Once for a cache, whose tokens come one by one.
  RefreshTables(cache == nullptr ? length : std::max(before + length, cache->capacity()),
                tokens.device());
  at::Tensor x = embed_tokens_->forward(tokens);
  const at::Tensor cos = cos_.slice(1, before, before + length).to(x.scalar_type());
  const at::Tensor sin = sin_.slice(1, before, before + length).to(x.scalar_type());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const at::Tensor mask = MaskOf(i, before, length, x.device());
    if (cache != nullptr) {
      x = blocks_[i](x, cos, sin, mask, &cache->layer(i));
    } else {
      x = mask.defined() ? Call(blocks_[i], x, cos, sin, mask) : Call(blocks_[i], x, cos, sin);
    }
  }
  return norm_->forward(x);
}

const at::Tensor& Decoder::HeadWeight() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

at::Tensor Decoder::ToLogits(const at::Tensor& hidden) {
  return lm_head_ ? lm_head_->forward(hidden) : at::linear(hidden, embed_tokens_->weight);
}

std::vector<std::shared_ptr<torch::nn::Module>> Decoder::Blocks() const {
  std::vector<std::shared_ptr<torch::nn::Module>> blocks;
  for (const fsdp::Unit<DecoderBlock>& block : blocks_) {
    blocks.push_back(block.ptr());
  }
  return blocks;
}

void Decoder::InitParameter(const std::string& fqn, at::Tensor full,
                            const at::Generator& generator) const {
  const at::NoGradGuard no_grad;
  if (fqn.ends_with("norm.weight")) {
    full.fill_(1.0);
  } else if (fqn.ends_with(".bias")) {
    full.zero_();
  } else {
    full.normal_(0.0, network_.initializer_range, generator);
    if (network_.padding_token && fqn == config().names.embedding) {
      full[*network_.padding_token].zero_();
    }
  }
}

}  // namespace fsdprun::worker
