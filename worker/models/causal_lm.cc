#include "worker/models/causal_lm.h"

#include <ATen/ATen.h>

#include <variant>

#include "worker/models/decoder/decoder.h"
#include "worker/models/gpt2/gpt2.h"

namespace fsdprun::worker {
namespace {

/// One overload for each network of ModelConfig.
struct Maker {
  const ModelConfig& model;
  const ParameterFactory& factory;

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

std::shared_ptr<CausalLm> MakeCausalLm(const ModelConfig& config, const ParameterFactory& factory) {
  return std::visit(Maker{config, factory}, config.network);
}

at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).reshape({-1, logits.size(-1)}),
                                targets.reshape({-1}));
}

}  // namespace fsdprun::worker
