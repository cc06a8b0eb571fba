#pragma once

// A sharded toy model and what the engine's tests measure on it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "fsdp_runtime/plan/box.h"
#include "tests/unit/fsdp_runtime/engine/plain_training.h"
#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {

using Gradients = std::map<std::string, at::Tensor>;

struct Sharded {
  Unit<ToyModel> model;
  FSDPModule root;
};

inline Sharded make(const Rank& rank, const ToyConfig& config = {},
                    FullyShardOptions options = {}) {
  options.mesh = rank.mesh;
  Sharded setup{make_sharded(config, options), {}};
  setup.root = fsdp_module(*setup.model);
  setup.root.init_parameters(initialise);
  return setup;
}

inline at::Tensor loss(const Unit<ToyModel>& model, int64_t step, int64_t rank) {
  const at::Tensor tokens = tokens_of(model->config, step, rank);
  return loss_of(model(tokens), tokens);
}

/// This rank's part of `whole`, laid out like `shard.local`.
inline at::Tensor part_of(const at::Tensor& whole, LocalShard shard) {
  shard.local = at::empty({plan::total_numel(shard.boxes)}, whole.options());
  copy_part_of(whole, shard);
  return shard.local;
}

inline void expect_piece(const LocalShard& shard, const at::Tensor& whole, double bound) {
  ASSERT_TRUE(shard.local.defined()) << shard.fqn << " has no gradient";
  const at::Tensor piece = part_of(whole.reshape(shard.global_shape), shard).to(at::kDouble);
  ASSERT_EQ(shard.local.sizes(), piece.sizes()) << shard.fqn;
  // A NaN on either side is not within any bound.
  EXPECT_TRUE(((shard.local.to(at::kDouble) - piece).abs() <= bound).all().item<bool>())
      << shard.fqn << " differs from what training without sharding gives";
}

/// Adds 1 to the elements of `whole` that the boxes hold.
inline void count_held(const at::Tensor& whole, const Shard& shard) {
  for (const Box& box : shard.boxes) {
    at::Tensor piece = whole;
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      piece = piece.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
    }
    piece += 1;
  }
}

/// The gradients of all ranks, which all call this, against whole ones: each parameter that is
/// expected to have a gradient has it, no other one has, and the pieces of the ranks together are
/// the whole, each element on one rank. Exact unless a bound is given.
inline void expect_gradients(const Rank& rank, const FSDPModule& root, const Gradients& expected,
                             double bound = 0) {
  std::map<std::string, at::Tensor> holders;  // of each element, by how many ranks it is held
  for (const auto& [fqn, whole] : expected) {
    holders[fqn] = at::zeros(whole.sizes(), at::kLong);
  }
  for (const LocalShard& slice : root.sharded_gradients()) {
    if (expected.count(slice.fqn) == 0) {
      EXPECT_FALSE(slice.local.defined()) << slice.fqn << " has a gradient, expected none";
      continue;
    }
    expect_piece(slice, expected.at(slice.fqn), bound);
    count_held(holders.at(slice.fqn), slice);
  }
  for (auto& [fqn, count] : holders) {
    rank.comm->all_reduce(count, ReduceOp::kSum, Lane::kReduce)->wait();
    EXPECT_TRUE(count.eq(1).all().item<bool>())
        << fqn << ": the ranks' pieces are not the whole gradient, each element once";
  }
}

inline int64_t count(const Rank& rank, const std::string& operation) {
  const auto& records = rank.comm->records();
  return std::count_if(records.begin(), records.end(),
                       [&](const auto& record) { return record.operation == operation; });
}

}  // namespace fsdp::testing
