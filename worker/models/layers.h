#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdprun::worker {

/// How layers compute.
enum class Kernels {
  kReference,  // As transformers: the same operations in the same order.
  kFused,      // The same functions in fewer passes over memory (fused/ops.h).
};

/// Creates parameters, with uninitialised memory or unmaterialized (without memory), to be
/// initialised after fully_shard; and says how the layers compute that they are for.
struct LayerFactory {
  at::Device device = at::kCPU;
  bool is_unmaterialized = false;
  Kernels kernels = Kernels::kReference;
  /// Of parameters.
  at::ScalarType dtype = at::kFloat;

  /// A parameter of `sizes`.
  at::Tensor Make(at::IntArrayRef sizes) const;
};

class Lora;

/// y = x W^T + b, and what an adapter adds. weight: [out_features, in_features], bias:
/// [out_features] or absent.
class Linear : public torch::nn::Module {
 public:
  Linear(int64_t in_features, int64_t out_features, bool has_bias, const LayerFactory& factory);
  /// x: [..., in_features] -> [..., out_features].
  at::Tensor forward(const at::Tensor& x);
  /// Once, before the first forward: Note [Adapters]. What computes with `weight` alone, such as
  /// fused::LinearCrossEntropy, leaves the adapter out.
  void Adapt(int64_t rank, double scale, const LayerFactory& factory);

  at::Tensor weight;
  at::Tensor bias;

 private:
  std::shared_ptr<Lora> lora_;  // null: none
};

/// weight: [vocab_size, hidden_size].
class Embedding : public torch::nn::Module {
 public:
  /// The row of `padding_token` gets no gradient from this lookup.
  Embedding(int64_t vocab_size, int64_t hidden_size, std::optional<int64_t> padding_token,
            const LayerFactory& factory);
  /// tokens: int64 [...] -> [..., hidden_size].
  at::Tensor forward(const at::Tensor& tokens);

  at::Tensor weight;

 private:
  int64_t padding_index_;  // -1: none
};

/// Root mean square norm, computed in float32 and cast back before the multiplication by the
/// weight, as LlamaRMSNorm in Hugging Face's transformers does; fused it is cast back at the end.
/// weight: [hidden_size].
class RmsNorm : public torch::nn::Module {
 public:
  RmsNorm(int64_t hidden_size, double eps, const LayerFactory& factory);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;

 private:
  double eps_;
  Kernels kernels_;
};

/// Mean and variance over the last axis. weight, bias: [hidden_size].
class LayerNorm : public torch::nn::Module {
 public:
  LayerNorm(int64_t hidden_size, double eps, const LayerFactory& factory);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;

 private:
  double eps_;
};

/// y = x W + b, as Conv1D in transformers, and what an adapter adds. weight: [in_features,
/// out_features], bias: [out_features].
class TransposedLinear : public torch::nn::Module {
 public:
  TransposedLinear(int64_t in_features, int64_t out_features, const LayerFactory& factory);
  /// x: [..., in_features] -> [..., out_features].
  at::Tensor forward(const at::Tensor& x);
  /// As Linear's.
  void Adapt(int64_t rank, double scale, const LayerFactory& factory);

  at::Tensor weight;
  at::Tensor bias;

 private:
  std::shared_ptr<Lora> lora_;  // null: none
};

}  // namespace fsdprun::worker
