#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fsdp_runtime/src/engine/module_walk.h"
#include "fsdp_runtime/src/engine/param_group.h"

namespace fsdp {

/// Elements [begin, end) of a flat shard.
struct ShardSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t numel() const { return end - begin; }
};

/// Of a unit's group of parameters: those that an optimizer updates. What it keeps of them lies in
/// flat tensors of `state_numel` elements.
struct UnitParams {
  struct Param {
    ShardSegment segment;     // its elements of the shard, with the padding behind them
    int64_t state_begin = 0;  // of its elements in what is kept, which are as many
    size_t param_group = 0;
  };
  std::shared_ptr<ParamGroup> group;
  std::vector<Param> params;    // in the order of the unit's group
  std::vector<size_t> indices;  // of them, in the unit's group
  size_t first = 0;             // number of the first one, counted over all units
  int64_t state_numel = 0;

  bool has_all() const { return params.size() == group->size(); }
  /// Of `flat`, which has `state_numel` elements: this rank's part of parameter `index` of
  /// `params`.
  at::Tensor part_of(const at::Tensor& flat, size_t index) const;
  /// Of these parameters, and of no other one. Behind ParamGroup::settle_backward().
  void drop_gradients() const;
};

/// Those of `group` that are in a param group. `params`: of the model, `group_of`: by these.
/// `first` is the caller's.
UnitParams params_in(const std::shared_ptr<ParamGroup>& group, const std::vector<ParamRef>& params,
                     const std::vector<std::optional<size_t>>& group_of);

}  // namespace fsdp
