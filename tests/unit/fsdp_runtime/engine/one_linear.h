#pragma once

// One linear layer as a model, for tests of fsdp::linear beside at::linear.

#include <ATen/ATen.h>
#include <fsdp/counters.h>
#include <fsdp/linear.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

using LinearCall = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&);

inline at::Tensor aten_linear(const at::Tensor& x, const at::Tensor& weight,
                              const at::Tensor& bias) {
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

/// One linear layer, called several times in a row if told so.
struct LinearLayer : torch::nn::Module {
  LinearLayer(int64_t in, int64_t out, bool has_bias, LinearCall call) : call(call) {
    weight =
        register_parameter("weight", at::sin(at::arange(out * in, at::kFloat)).view({out, in}));
    if (has_bias) {
      bias = register_parameter("bias", at::cos(at::arange(out, at::kFloat)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < times; ++i) {
      y = call(y, weight, bias);
    }
    made_by = y.grad_fn() ? y.grad_fn()->name() : "";
    return y;
  }
  LinearCall call;
  int times = 1;
  std::string made_by;  // the last output
  at::Tensor weight, bias;
};

struct OneLayer {
  OneLayer(const Rank& rank, LinearCall call, int64_t in = 24, int64_t out = 40,
           bool has_bias = false)
      : layer(std::make_shared<LinearLayer>(in, out, has_bias, call)) {
    FullyShardOptions options;
    options.mesh = rank.mesh;
    root = fully_shard(layer.ptr(), options);
  }
  int64_t moved() const { return runtime_counters(root).moved_gradients; }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const LocalShard& shard : root.sharded_gradients()) {
      all.push_back(shard.local.clone());
    }
    return all;
  }
  Unit<LinearLayer> layer;
  FSDPModule root;
};

inline at::Tensor batch(at::IntArrayRef sizes, double phase = 0.5) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.7 + phase).view(sizes);
}

}  // namespace fsdp::testing
