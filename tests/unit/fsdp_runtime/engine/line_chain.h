#pragma once

// A chain of small units that can be run in any order, and what it gives without sharding.

#include <ATen/ATen.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

struct ChainLine : torch::nn::Module {
  static constexpr int64_t kWidth = 5;  // which neither 2 nor 3 ranks divide evenly
  explicit ChainLine(int64_t number) {
    const at::Tensor index = at::arange(kWidth * kWidth, at::kFloat);
    weight = register_parameter("weight", ((index + number) * 1.7).sin().view({kWidth, kWidth}));
    bias = register_parameter("bias", (index.narrow(0, 0, kWidth) - number).cos() * 0.1);
  }
  at::Tensor forward(const at::Tensor& x) {
    seen = x.scalar_type();
    return at::tanh(at::linear(x, weight, bias));
  }
  void freeze(bool freezes) {
    weight.requires_grad_(!freezes);
    bias.requires_grad_(!freezes);
  }
  at::Tensor weight, bias;
  at::ScalarType seen = at::kByte;  // of the last input
};

struct Chain : torch::nn::Module {
  Chain() {
    for (int64_t i = 0; i < 3; ++i) {
      lines.emplace_back(std::make_shared<ChainLine>(i));
      register_module("line" + std::to_string(i), lines.back().ptr());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (const size_t number : order) {
      const Unit<ChainLine>& line = lines[number];
      y = checkpoints
              ? activation_checkpoint([line](const at::Tensor& input) { return line(input); }, y)
              : line(y);
      if (number == 0 && cuts_behind_first) {
        y = y.detach();
      }
    }
    return y;
  }
  std::vector<Unit<ChainLine>> lines;
  std::vector<size_t> order = {0, 1, 2};
  bool checkpoints = false;
  bool cuts_behind_first = false;
};

inline at::Tensor chain_input(int64_t rank, int64_t step = 0) {
  const at::Tensor index = at::arange(4 * ChainLine::kWidth, at::kFloat);
  return ((index + static_cast<double>(step * 3 + rank * 7)) * 0.9).sin().view({4, -1});
}

inline at::Tensor chain_loss(const Unit<Chain>& model, int64_t rank, int64_t step = 0) {
  return model(chain_input(rank, step)).square().mean();
}

/// What a rank does with the model, backward included.
using ChainPass = std::function<void(const Unit<Chain>& model, int64_t rank)>;

/// The gradients that `pass` leaves, averaged over the ranks; by parameter that one of them uses.
inline Gradients chain_gradients(int64_t ranks, const ChainPass& pass) {
  Gradients sum;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Unit<Chain> model(std::make_shared<Chain>());
    pass(model, rank);
    for (const auto& param : model->named_parameters()) {
      if (const at::Tensor& gradient = param.value().grad(); gradient.defined()) {
        sum[param.key()] = sum.contains(param.key()) ? sum[param.key()] + gradient : gradient;
      }
    }
  }
  for (auto& [fqn, gradient] : sum) {
    gradient = gradient / ranks;
  }
  return sum;
}

struct ShardedChain {
  Unit<Chain> model{std::make_shared<Chain>()};
  FSDPModule root;
};

/// Each line is a unit.
inline ShardedChain shard_chain(const Rank& rank, FullyShardOptions options = {}) {
  options.mesh = rank.mesh;
  ShardedChain setup;
  for (const Unit<ChainLine>& line : setup.model->lines) {
    fully_shard(line.ptr(), options);
  }
  setup.root = fully_shard(setup.model.ptr(), options);
  return setup;
}

/// On 1, 2 and 3 ranks `pass` leaves the gradients that it leaves without sharding.
inline void expect_as_without_sharding(const ChainPass& pass) {
  for (const int64_t ranks : {1, 2, 3}) {
    const Gradients expected = chain_gradients(ranks, pass);
    run_ranks(ranks, [&](Rank& rank) {
      const ShardedChain setup = shard_chain(rank);
      pass(setup.model, rank.rank);
      expect_gradients(rank, setup.root, expected, 1e-6);
    });
  }
}

}  // namespace fsdp::testing
