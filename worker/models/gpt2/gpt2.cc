#include "worker/models/gpt2/gpt2.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <optional>
#include <tuple>

namespace fsdprun::worker {

Gpt2Attention::Gpt2Attention(const Gpt2Config& config, int64_t layer, const LayerFactory& factory)
    : n_head_(config.n_head), scale_(1.0) {
  if (config.scale_attn_weights) {
    scale_ /= std::sqrt(static_cast<double>(config.n_embd / config.n_head));
  }
  if (config.scale_attn_by_inverse_layer_idx) {
    scale_ /= static_cast<double>(layer + 1);
  }
  c_attn_ = register_module(
      "c_attn", std::make_shared<TransposedLinear>(config.n_embd, 3 * config.n_embd, factory));
  c_proj_ = register_module(
      "c_proj", std::make_shared<TransposedLinear>(config.n_embd, config.n_embd, factory));
}

at::Tensor Gpt2Attention::forward(const at::Tensor& x, LayerCache* cache) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  const std::vector<at::Tensor> parts = c_attn_->forward(x).split(width, 2);
  const auto heads = [&](const at::Tensor& part) {
    return part.view({batch, length, n_head_, -1}).transpose(1, 2);
  };
  at::Tensor k = heads(parts[1]), v = heads(parts[2]);
  std::optional<at::Tensor> mask;
  const int64_t before = cache == nullptr ? 0 : cache->length();
  if (cache != nullptr) {
    std::tie(k, v) = cache->Append(k, v);
  }
  if (before > 0 && length > 1) {
    mask = at::ones({length, before + length}, x.options().dtype(at::kBool)).tril(before);
  }
  const at::Tensor attended =
      at::scaled_dot_product_attention(heads(parts[0]), k, v, mask, /*dropout_p=*/0.0,
                                       /*is_causal=*/before == 0, scale_);
  return c_proj_->forward(attended.transpose(1, 2).contiguous().reshape({batch, length, width}));
}

Gpt2Mlp::Gpt2Mlp(const Gpt2Config& config, const LayerFactory& factory) {
  c_fc_ = register_module(
      "c_fc", std::make_shared<TransposedLinear>(config.n_embd, config.n_inner, factory));
  c_proj_ = register_module(
      "c_proj", std::make_shared<TransposedLinear>(config.n_inner, config.n_embd, factory));
}

at::Tensor Gpt2Mlp::forward(const at::Tensor& x) {
  // One kernel for what transformers' gelu_new computes in seven steps: the same function, rounded
  // less often, and without tensors for the steps in between.
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

Gpt2Block::Gpt2Block(const Gpt2Config& config, int64_t layer, const LayerFactory& factory) {
  const auto norm = [&](const char* name) {
    return register_module(
        name, std::make_shared<LayerNorm>(config.n_embd, config.layer_norm_epsilon, factory));
  };
  ln_1_ = norm("ln_1");
  attn_ = register_module("attn", std::make_shared<Gpt2Attention>(config, layer, factory));
  ln_2_ = norm("ln_2");
  mlp_ = register_module("mlp", std::make_shared<Gpt2Mlp>(config, factory));
}

at::Tensor Gpt2Block::forward(const at::Tensor& x, LayerCache* cache) {
  const at::Tensor attended = attn_->forward(ln_1_->forward(x), cache) + x;
  return attended + mlp_->forward(ln_2_->forward(attended));
}

Gpt2::Gpt2(const ModelConfig& model, const Gpt2Config& config, const LayerFactory& factory)
    : CausalLm(model, factory), network_(config) {
  // Hugging Face's tree: transformer.{wte, wpe, h.N, ln_f}, lm_head.
  auto body = register_module("transformer", std::make_shared<torch::nn::Module>("Gpt2Body"));
  const auto embedding = [&](const char* name, int64_t rows) {
    return body->register_module(
        name, std::make_shared<Embedding>(rows, config.n_embd, std::nullopt, factory));
  };
  wte_ = embedding("wte", config.vocab_size);
  wpe_ = embedding("wpe", config.n_positions);
  auto layers = body->register_module("h", std::make_shared<torch::nn::Module>("Gpt2Layers"));
  for (int64_t i = 0; i < config.n_layer; ++i) {
    blocks_.emplace_back(std::make_shared<Gpt2Block>(config, i, factory));
    layers->register_module(std::to_string(i), blocks_.back().ptr());
  }
  ln_f_ = body->register_module(
      "ln_f", std::make_shared<LayerNorm>(config.n_embd, config.layer_norm_epsilon, factory));
  if (!config.tie_word_embeddings) {
    lm_head_ = register_module("lm_head", std::make_shared<Linear>(config.n_embd, config.vocab_size,
                                                                   /*has_bias=*/false, factory));
  }
}

at::Tensor Gpt2::Hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  const int64_t before = cache == nullptr ? 0 : cache->length(), length = tokens.size(1);
  TORCH_CHECK(before + length <= network_.n_positions, "GPT-2: ", before + length,
              " tokens in a sequence, but the model has n_positions = ", network_.n_positions);
  const at::Tensor positions =
      at::arange(before, before + length, at::TensorOptions(at::kLong).device(tokens.device()))
          .unsqueeze(0);
  at::Tensor x = wte_->forward(tokens) + wpe_->forward(positions);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = cache != nullptr ? blocks_[i](x, &cache->layer(i)) : Call(blocks_[i], x);
  }
  return ln_f_->forward(x);
}

const at::Tensor& Gpt2::HeadWeight() const { return lm_head_ ? lm_head_->weight : wte_->weight; }

at::Tensor Gpt2::ToLogits(const at::Tensor& hidden) {
  return lm_head_ ? lm_head_->forward(hidden) : at::linear(hidden, wte_->weight);
}

std::vector<std::shared_ptr<torch::nn::Module>> Gpt2::Blocks() const {
  std::vector<std::shared_ptr<torch::nn::Module>> blocks;
  for (const fsdp::Unit<Gpt2Block>& block : blocks_) {
    blocks.push_back(block.ptr());
  }
  return blocks;
}

void Gpt2::InitParameter(const std::string& fqn, at::Tensor full,
                         const at::Generator& generator) const {
  const at::NoGradGuard no_grad;
  const bool is_norm = fqn.find(".ln_") != std::string::npos;
  if (fqn.ends_with(".bias")) {
    full.zero_();
  } else if (is_norm) {
    full.fill_(1.0);
  } else {
    // What ends a residual branch is drawn smaller, the deeper the model (GPT-2's paper, 2.3).
    const bool ends_branch = fqn.ends_with(".c_proj.weight");
    const double shrink =
        ends_branch ? std::sqrt(2.0 * static_cast<double>(network_.n_layer)) : 1.0;
    full.normal_(0.0, network_.initializer_range / shrink, generator);
  }
}

}  // namespace fsdprun::worker
