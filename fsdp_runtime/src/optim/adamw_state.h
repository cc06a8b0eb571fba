#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/optim.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {

/// Elements [begin, end) of a flat shard.
struct ShardSegment {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Of a unit's group of parameters: those that are optimized, and their state.
struct AdamW::UnitState {
  struct Param {
    ShardSegment segment;     // its elements of the shard, with the padding behind them
    int64_t state_begin = 0;  // of its elements in the moments, which are as many
    size_t param_group = 0;
  };
  std::shared_ptr<ParamGroup> group;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  std::vector<Param> params;    // in the order of the unit's group
  std::vector<size_t> indices;  // of them, in the unit's group
  size_t first = 0;             // number of the first one, counted over all units

  bool has_all() const { return params.size() == group->size(); }
};

/// Where a parameter's state is.
struct AdamW::Place {
  const UnitState* unit = nullptr;  // null: it is not optimized
  size_t index = 0;                 // in the unit's `params`
  size_t number() const { return unit->first + index; }
};

/// A count of updates.
at::Tensor zero_counter(c10::Device device);

}  // namespace fsdp
