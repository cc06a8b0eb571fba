#pragma once

// A sharded toy model and what the engine's tests measure on it.

#include <algorithm>
#include <map>
#include <string>

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

// This rank's pieces of the gradients against whole ones. Exact unless a bound is given.
inline void expect_gradients(const FSDPModule& root, const Gradients& expected, double bound = 0) {
  for (const ShardedSlice& slice : root.sharded_gradients()) {
    if (expected.count(slice.fqn) == 0) {
      continue;
    }
    ASSERT_TRUE(slice.local.defined()) << slice.fqn;
    const at::Tensor piece =
        expected.at(slice.fqn).flatten().slice(0, slice.flat_begin, slice.flat_end);
    if (piece.numel() > 0) {
      EXPECT_LE((slice.local - piece).abs().max().item<double>(), bound) << slice.fqn;
    }
  }
}

inline int64_t count(const Rank& rank, const std::string& operation) {
  const auto& records = rank.comm->records();
  return std::count_if(records.begin(), records.end(),
                       [&](const auto& record) { return record.operation == operation; });
}

}  // namespace fsdp::testing
