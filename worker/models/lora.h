#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>

#include "formats/models/lora.h"
#include "worker/models/layers.h"

namespace fsdprun::worker {

class CausalLm;

struct LoraSizes {
  int64_t in_features = 0;
  int64_t out_features = 0;
  int64_t rank = 0;
};

/// An adapter of a linear layer: Note [Adapters] in formats/models/lora.h.
class Lora {
 public:
  /// Registers the modules lora_A and lora_B in `layer`. Both are uninitialised, and trained.
  Lora(torch::nn::Module& layer, const LoraSizes& sizes, double scale, const LayerFactory& factory);

  /// y + scale * B (A x), what `layer` has made of x being y. x: [..., in_features], y: [...,
  /// out_features].
  at::Tensor AddTo(const at::Tensor& y, const at::Tensor& x) const;

 private:
  std::shared_ptr<Linear> a_;
  std::shared_ptr<Linear> b_;
  double scale_;
};

/// Gives the layers that `lora` names an adapter, and freezes all other parameters of the model:
/// they have no requires_grad then. Before Shard(). Errors: as AdaptedLayers's.
void AddAdapters(const LoraConfig& lora, const LayerFactory& factory, CausalLm& model);

/// Initialises the adapter's weight of this name: A by kaiming_uniform_(a=sqrt(5)), B with zeros.
/// full: [rank, in_features] or [out_features, rank].
void InitAdapterWeight(const std::string& fqn, at::Tensor full, const at::Generator& generator);

}  // namespace fsdprun::worker
