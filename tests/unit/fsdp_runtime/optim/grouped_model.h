#pragma once

// The toy model with its parameters in two param groups, and steps in which one has no gradient.

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

/// Matrices, vectors, and the embedding, which no group has. In the unit of a block they alternate.
inline std::optional<size_t> group_of(const std::string& fqn) {
  if (fqn == "embedding") {
    return std::nullopt;
  }
  return fqn.ends_with("up") || fqn.ends_with("down") ? 0 : 1;
}

inline std::vector<AdamWParamGroup> groups_of(const FSDPModule& root) {
  std::vector<AdamWParamGroup> groups = {
      {.params = {}, .lr = 1e-2, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1},
      {.params = {}, .eps = 1e-6, .weight_decay = 0.0}};
  for (const LocalShard& shard : root.sharded_parameters()) {
    if (const std::optional<size_t> group = group_of(shard.fqn)) {
      groups[*group].params.push_back(shard.fqn);
    }
  }
  return groups;
}

inline constexpr AdamWOptions kDefaults{.lr = 3e-3};

inline std::vector<AdamWOptions> options_by_group() {
  return {{.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.9, .weight_decay = 0.1},
          {.lr = 3e-3, .eps = 1e-6, .weight_decay = 0}};
}

/// A spare parameter is used in some steps only, so that it has no gradient in others.
inline void choose_spare(const Unit<ToyModel>& model, int64_t step) {
  model->blocks[1]->use_spare = step != 1;
}

inline Gradients gradients_in(PlainTraining& plain, int64_t step) {
  choose_spare(plain.model, step);
  return plain.gradients([&](int64_t rank) { return loss(plain.model, step, rank); });
}

inline void backward_in(Sharded& setup, int64_t step, int64_t rank) {
  choose_spare(setup.model, step);
  loss(setup.model, step, rank).backward();
}

inline void expect_parameters(FSDPModule& root, const PlainTraining& plain) {
  for (const LocalShard& shard : root.sharded_parameters()) {
    EXPECT_TRUE(at::equal(shard.local, part_of(plain.parameter(shard.fqn), shard))) << shard.fqn;
  }
}

}  // namespace fsdp::testing
