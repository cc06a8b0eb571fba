#include "worker/models/layers.h"

#include <ATen/ATen.h>
#include <fsdp/fully_shard.h>
#include <fsdp/linear.h>

#include <vector>

#include "worker/models/fused/ops.h"
#include "worker/models/lora.h"

namespace fsdprun::worker {

at::Tensor LayerFactory::Make(at::IntArrayRef sizes) const {
  if (is_unmaterialized) {
    return fsdp::unmaterialized_parameter(sizes, dtype, device);
  }
  return at::empty(sizes, at::TensorOptions(dtype).device(device));
}

Linear::Linear(int64_t in_features, int64_t out_features, bool has_bias,
               const LayerFactory& factory) {
  weight = register_parameter("weight", factory.Make({out_features, in_features}));
  if (has_bias) {
    bias = register_parameter("bias", factory.Make({out_features}));
  }
}

at::Tensor Linear::forward(const at::Tensor& x) {
  const at::Tensor y = fsdp::linear(x, weight, bias);
  return lora_ ? lora_->AddTo(y, x) : y;
}

void Linear::Adapt(int64_t rank, double scale, const LayerFactory& factory) {
  lora_ = std::make_shared<Lora>(
      *this, LoraSizes{.in_features = weight.size(1), .out_features = weight.size(0), .rank = rank},
      scale, factory);
}

Embedding::Embedding(int64_t vocab_size, int64_t hidden_size, std::optional<int64_t> padding_token,
                     const LayerFactory& factory)
    : padding_index_(padding_token.value_or(-1)) {
  weight = register_parameter("weight", factory.Make({vocab_size, hidden_size}));
}

at::Tensor Embedding::forward(const at::Tensor& tokens) {
  return at::embedding(weight, tokens, padding_index_);
}

RmsNorm::RmsNorm(int64_t hidden_size, double eps, const LayerFactory& factory)
    : eps_(eps), kernels_(factory.kernels) {
  weight = register_parameter("weight", factory.Make({hidden_size}));
}

at::Tensor RmsNorm::forward(const at::Tensor& x) {
  if (kernels_ == Kernels::kFused) {
    return fused::RmsNorm(x, weight, eps_);
  }
  const at::Tensor x_f32 = x.to(at::kFloat);
  const at::Tensor variance = x_f32.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (x_f32 * at::rsqrt(variance + eps_)).to(x.scalar_type());
}

LayerNorm::LayerNorm(int64_t hidden_size, double eps, const LayerFactory& factory) : eps_(eps) {
  weight = register_parameter("weight", factory.Make({hidden_size}));
  bias = register_parameter("bias", factory.Make({hidden_size}));
}

at::Tensor LayerNorm::forward(const at::Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, weight, bias, eps_);
}

TransposedLinear::TransposedLinear(int64_t in_features, int64_t out_features,
                                   const LayerFactory& factory) {
  weight = register_parameter("weight", factory.Make({in_features, out_features}));
  bias = register_parameter("bias", factory.Make({out_features}));
}

at::Tensor TransposedLinear::forward(const at::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = bias.size(0);
  const at::Tensor y = at::addmm(bias, x.view({-1, x.size(-1)}), weight).view(sizes);
  return lora_ ? lora_->AddTo(y, x) : y;
}

void TransposedLinear::Adapt(int64_t rank, double scale, const LayerFactory& factory) {
  lora_ = std::make_shared<Lora>(
      *this, LoraSizes{.in_features = weight.size(0), .out_features = weight.size(1), .rank = rank},
      scale, factory);
}

}  // namespace fsdprun::worker
