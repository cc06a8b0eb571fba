#pragma once

// Gradients that have overflowed.

#include <gtest/gtest.h>

#include <limits>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline at::Tensor tensor_of(double value) { return at::full({}, value, at::kFloat); }

/// Writes into an element of a gradient that this rank holds, of a parameter whose name ends so.
inline void spoil(const FSDPModule& root, float value, const std::string& suffix = "") {
  for (const LocalShard& gradient : root.sharded_gradients()) {
    if (gradient.local.defined() && gradient.local.numel() > 0 && gradient.fqn.ends_with(suffix)) {
      gradient.local[gradient.local.numel() - 1].fill_(value);
      return;
    }
  }
  ADD_FAILURE() << "this rank holds no gradient of " << suffix;
}

}  // namespace fsdp::testing
