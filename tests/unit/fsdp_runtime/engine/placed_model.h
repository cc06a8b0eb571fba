#pragma once

// The toy model with parameters that are divided along dimensions, and training of it.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {

/// Whose second matrices divide along dimension 1 over up to 4 ranks; nothing else divides evenly.
inline ToyConfig placed_toy() { return {.hidden = 36}; }

/// Large enough for windows: on up to 4 ranks the shards are whole pages without much padding.
inline ToyConfig wide_placed_toy() {
  ToyConfig config = wide_toy();
  config.vocab = 2047;
  return config;
}

/// Along dimension 1 of the second matrix of each block, along dimension 0 of everything else.
inline ShardPlacementFn inner_of_down() {
  return [](const std::string& fqn, const at::Tensor&) -> std::optional<ShardPlacement> {
    return fqn.ends_with("down") ? std::make_optional(ShardPlacement{-1}) : std::nullopt;
  };
}

/// Along the last dimension that divides evenly over `ranks`.
inline ShardPlacementFn last_that_divides(int64_t ranks) {
  return [ranks](const std::string&, const at::Tensor& parameter) {
    int64_t dim = parameter.dim() - 1;
    while (dim > 0 && parameter.size(dim) % ranks != 0) {
      --dim;
    }
    return ShardPlacement{dim};
  };
}

inline FullyShardOptions placed(FullyShardOptions options, ShardPlacementFn placement) {
  options.shard_placement_fn = std::move(placement);
  return options;
}

inline const plan::GroupLayout& layout_of(const torch::nn::Module& module) {
  return fsdp_module(module).state()->groups().front()->store().layout();
}

using Trained = std::map<std::string, at::Tensor>;

/// Adds the whole parameters.
inline void add_parameters(const FSDPModule& root, Trained& trained) {
  for (const LocalShard& shard : root.sharded_parameters()) {
    trained[shard.fqn] = root.full_parameter(shard.fqn);
  }
}

/// The losses of three steps with AdamW, each with two micro batches, of which the first is not
/// reduced in every second step; and the weights then.
inline Trained train(Sharded setup, int64_t rank) {
  AdamW optimizer(setup.root, {.lr = 0.05});
  Trained trained;
  for (int64_t step = 0; step < 3; ++step) {
    setup.model->blocks[0]->use_spare = step == 1;
    for (const bool is_last : {false, true}) {
      setup.root.set_requires_gradient_sync(is_last || step % 2 == 0);
      const at::Tensor result = loss(setup.model, 2 * step + (is_last ? 1 : 0), rank);
      trained["loss " + std::to_string(step) + (is_last ? " last" : "")] = result.detach();
      result.backward();
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  add_parameters(setup.root, trained);
  return trained;
}

inline void expect_same_bits(const Trained& found, const Trained& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

/// DTensor's local tensor of a Shard(dim).
inline at::Tensor chunk_of(const at::Tensor& whole, int64_t dim, int64_t ranks, int64_t rank) {
  const std::vector<at::Tensor> chunks = at::chunk(whole, ranks, dim);
  return rank < static_cast<int64_t>(chunks.size()) ? chunks[static_cast<size_t>(rank)]
                                                    : whole.narrow(dim, 0, 0);
}

}  // namespace fsdp::testing
