#include "worker/models/lora.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <string>

#include "worker/models/causal_lm.h"

namespace fsdprun::worker {

Lora::Lora(torch::nn::Module& layer, const LoraSizes& sizes, double scale,
           const LayerFactory& factory)
    : scale_(scale) {
  a_ = layer.register_module("lora_A", std::make_shared<Linear>(sizes.in_features, sizes.rank,
                                                                /*has_bias=*/false, factory));
  b_ = layer.register_module("lora_B", std::make_shared<Linear>(sizes.rank, sizes.out_features,
                                                                /*has_bias=*/false, factory));
}

at::Tensor Lora::AddTo(const at::Tensor& y, const at::Tensor& x) const {
  return y + b_->forward(a_->forward(x)) * scale_;
}

void AddAdapters(const LoraConfig& lora, const LayerFactory& factory, CausalLm& model) {
  for (at::Tensor& parameter : model.parameters()) {
    parameter.set_requires_grad(false);
  }
  const auto modules = model.named_modules();
  for (const std::string& name : AdaptedLayers(model.config(), lora)) {
    const std::shared_ptr<torch::nn::Module>& layer = modules[name];
    if (auto* linear = dynamic_cast<Linear*>(layer.get())) {
      linear->Adapt(lora.rank, lora.scale(), factory);
    } else {
      auto* transposed = dynamic_cast<TransposedLinear*>(layer.get());
      TORCH_INTERNAL_ASSERT(transposed != nullptr, name, " is no linear layer");
      transposed->Adapt(lora.rank, lora.scale(), factory);
    }
  }
}

void InitAdapterWeight(const std::string& fqn, at::Tensor full, const at::Generator& generator) {
  const at::NoGradGuard no_grad;
  if (fqn.ends_with("lora_B.weight")) {
    full.zero_();
    return;
  }
  // As torch.nn.init.kaiming_uniform_ computes it.
  const double slope = std::sqrt(5.0);
  const double gain = std::sqrt(2.0 / (1.0 + slope * slope));
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(static_cast<double>(full.size(1))));
  full.uniform_(-bound, bound, generator);
}

}  // namespace fsdprun::worker
