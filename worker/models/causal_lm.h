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
#include "worker/models/key_value_cache.h"
#include "worker/models/layers.h"

namespace fsdprun::worker {

/// A causal language model of any family, with Hugging Face's parameter names and order
/// ("model.layers.0.self_attn.q_proj.weight", ...): those of ModelConfig::weights. A tied head is
/// the embedding and has no name of its own.
class CausalLm : public torch::nn::Module {
 public:
  /// tokens: int64 [batch, length] -> logits [batch, length, vocab_size]. Error: TORCH_CHECK, for
  /// tokens beyond the positions that a family has weights for.
  at::Tensor forward(const at::Tensor& tokens) { return ToLogits(Hidden(tokens, nullptr)); }

  /// tokens: int64 [batch, length], which follow those in `cache` -> logits of the last one,
  /// [batch, vocab_size]. The cache has them, too, then. Without gradients. Errors: as forward, and
  /// for a cache that is full.
  at::Tensor Continue(const at::Tensor& tokens, KeyValueCache& cache);

  /// The mean cross entropy of the next tokens; targets: int64 [batch, length] -> float32 []. With
  /// Kernels::kFused the logits of all tokens are never there together.
  at::Tensor Loss(const at::Tensor& tokens, const at::Tensor& targets);

  /// A cache for sequences of up to `capacity` tokens.
  KeyValueCache MakeCache(int64_t capacity) const {
    return {static_cast<int64_t>(Blocks().size()), capacity};
  }

  /// Initialises the parameter `fqn` in `full` with `generator`, as transformers does a new model:
  /// ones for norms, zeros for biases and the padding token's embedding, else normal. Called in
  /// registration order with one generator it gives the same model at any world size.
  virtual void InitParameter(const std::string& fqn, at::Tensor full,
                             const at::Generator& generator) const = 0;

  /// Shards every block as its own unit and the rest as the root unit.
  fsdp::FSDPModule Shard(const fsdp::FullyShardOptions& blocks,
                         const fsdp::FullyShardOptions& root);

  /// From now on each block is computed again in backward instead of keeping its activations; also
  /// the first one whose weights, or adapters, are trained, behind others that are frozen.
  void CheckpointActivations() { recomputes_blocks_ = true; }

  const ModelConfig& config() const { return config_; }
  Kernels kernels() const { return kernels_; }

 protected:
  CausalLm(const ModelConfig& config, const LayerFactory& factory)
      : config_(config), kernels_(factory.kernels) {}

  /// What the head makes logits of: [batch, length, width]. `cache`: of the tokens before; null:
  /// there are none, and nothing is kept.
  virtual at::Tensor Hidden(const at::Tensor& tokens, KeyValueCache* cache) = 0;
  /// The head, which has no bias: [vocab_size, width].
  virtual const at::Tensor& HeadWeight() const = 0;
  virtual at::Tensor ToLogits(const at::Tensor& hidden) = 0;

  /// The blocks, each of which becomes a unit, in the order of forward.
  virtual std::vector<std::shared_ptr<torch::nn::Module>> Blocks() const = 0;

  /// The forward of a block. x: what the block before it has made, or the embedding.
  template <class Block, class... Tensors>
  at::Tensor Call(const fsdp::Unit<Block>& block, const at::Tensor& x,
                  const Tensors&... others) const {
    if (!recomputes_blocks_) {
      return block(x, others...);
    }
    fsdp::CheckpointOptions options;
    options.use_reentrant = true;
    options.preserve_rng_state = false;  // a block draws no random numbers
    return fsdp::activation_checkpoint(
        options,
        [block](const at::Tensor& x_again, const Tensors&... others_again) {
          return block(x_again, others_again...);
        },
        CheckpointedInput(x, *block.ptr()), others...);
  }

 private:
  /// x, such that activation_checkpoint() forgets what `block` computes of it: behind frozen
  /// weights alone nothing asks for x's gradient, and the call would be a plain one, though weights
  /// of the block are trained. A block that is frozen itself keeps nothing then, and x stays as it
  /// is.
  static at::Tensor CheckpointedInput(const at::Tensor& x, const torch::nn::Module& block);

  ModelConfig config_;
  Kernels kernels_;
  bool recomputes_blocks_ = false;
};

/// The model of `config`'s family, not initialised.
std::shared_ptr<CausalLm> MakeCausalLm(const ModelConfig& config, const LayerFactory& factory);

/// Mean cross entropy in float32. logits: [batch, length, vocab], targets: int64 [batch, length].
at::Tensor CausalLoss(const at::Tensor& logits, const at::Tensor& targets);

/// The loss of a model that may be sharded, by the way that its kernels are for.
at::Tensor LossOf(const fsdp::Unit<CausalLm>& model, const at::Tensor& tokens,
                  const at::Tensor& targets);

}  // namespace fsdprun::worker
