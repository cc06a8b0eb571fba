#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/models/layers.h"

namespace fsdprun::worker {

/// A causal language model of any family, with Hugging Face's parameter names and order
/// ("model.layers.0.self_attn.q_proj.weight", ...): those of ModelConfig::weights. A tied head is
/// the embedding and has no name of its own.
class CausalLm : public torch::nn::Module {
 public:
  /// tokens: int64 [batch, length] -> logits [batch, length, vocab_size]. Error: TORCH_CHECK, for
  /// tokens beyond the positions that a family has weights for.
  virtual at::Tensor forward(const at::Tensor& tokens) = 0;

  /// Initialises the parameter `fqn` in `full` with `generator`, as transformers does a new model:
  /// ones for norms, zeros for biases and the padding token's embedding, else normal. Called in
  /// registration order with one generator it gives the same model at any world size.
  virtual void InitParameter(const std::string& fqn, at::Tensor full,
                             const at::Generator& generator) const = 0;

  /// Shards every block as its own unit and the rest as the root unit.
  fsdp::FSDPModule Shard(const fsdp::FullyShardOptions& blocks,
                         const fsdp::FullyShardOptions& root);

  /// From now on each block is computed again in backward instead of keeping its activations.
  void CheckpointActivations() { recomputes_blocks_ = true; }

  const ModelConfig& config() const { return config_; }

 protected:
  explicit CausalLm(const ModelConfig& config) : config_(config) {}

  /// The blocks, each of which becomes a unit, in the order of forward.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> Blocks() const = 0;

  /// The forward of a block.
  template <class Block, class... Tensors>
  at::Tensor Call(const fsdp::Unit<Block>& block, const Tensors&... inputs) const {
    if (!recomputes_blocks_) {
      return block(inputs...);
    }
    return fsdp::activation_checkpoint(
        [block](const Tensors&... inputs_again) { return block(inputs_again...); }, inputs...);
  }

 private:
  ModelConfig config_;
  bool recomputes_blocks_ = false;
};

/// The model of `config`'s family, not initialised.
std::shared_ptr<CausalLm> MakeCausalLm(const ModelConfig& config, const ParameterFactory& factory);

/// Mean cross entropy in float32. logits: [batch, length, vocab], targets: int64 [batch, length].
at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace fsdprun::worker
