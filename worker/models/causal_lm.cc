#include "worker/models/causal_lm.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "worker/models/decoder/decoder.h"
#include "worker/models/fused/ops.h"
#include "worker/models/gpt2/gpt2.h"

namespace fsdprun::worker {
namespace {

/// One overload for each network of ModelConfig.
struct Maker {
  const ModelConfig& model;
  const LayerFactory& factory;

  std::shared_ptr<CausalLm> operator()(const DecoderConfig& config) const {
    return std::make_shared<Decoder>(model, config, factory);
  }
  std::shared_ptr<CausalLm> operator()(const Gpt2Config& config) const {
    return std::make_shared<Gpt2>(model, config, factory);
  }
};

}  // namespace

fsdp::FSDPModule CausalLm::Shard(const fsdp::FullyShardOptions& blocks,
                                 const fsdp::FullyShardOptions& root) {
  for (const std::shared_ptr<torch::nn::Module>& block : Blocks()) {
    fsdp::fully_shard(block, blocks);
  }
  return fsdp::fully_shard(shared_from_this(), root);
}

at::Tensor CausalLm::Continue(const at::Tensor& tokens, KeyValueCache& cache) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = Hidden(tokens, &cache);
  return ToLogits(hidden.narrow(1, hidden.size(1) - 1, 1)).select(1, 0);
}

at::Tensor CausalLm::Loss(const at::Tensor& tokens, const at::Tensor& targets) {
  if (kernels_ == Kernels::kFused) {
    return fused::LinearCrossEntropy(Hidden(tokens, nullptr), HeadWeight(), targets);
  }
  return CausalLoss(forward(tokens), targets);
}

at::Tensor CausalLm::CheckpointedInput(const at::Tensor& x, const torch::nn::Module& block) {
  if (!at::GradMode::is_enabled() || x.requires_grad()) {
    return x;
  }
  const std::vector<at::Tensor> parameters = block.parameters();
  const bool is_trained =
      std::any_of(parameters.begin(), parameters.end(),
                  [](const at::Tensor& parameter) { return parameter.requires_grad(); });
  return is_trained ? x.detach().requires_grad_() : x;
}

std::shared_ptr<CausalLm> MakeCausalLm(const ModelConfig& config, const LayerFactory& factory) {
  return std::visit(Maker{config, factory}, config.network);
}

at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}));
}

at::Tensor LossOf(const fsdp::Unit<CausalLm>& model, const at::Tensor& tokens,
                  const at::Tensor& targets) {
  if (model->kernels() == Kernels::kFused) {
    return model.call_method(&CausalLm::Loss, tokens, targets);
  }
  // The logits are the unit's result, which mixed precision casts.
  return CausalLoss(model(tokens), targets);
}

}  // namespace fsdprun::worker
