#include "fsdp_runtime/src/optim/unit_params.h"

#include <ATen/ATen.h>

namespace fsdp {
namespace {

// Of each parameter of the group.
std::vector<ShardSegment> segments_of(const ParamGroup& group) {
  std::vector<ShardSegment> segments(group.size());
  int64_t end = group.store().layout().shard_numel;
  for (size_t i = group.size(); i-- > 0;) {
    const bool is_elsewhere = group.store().slice(i).numel() == 0;
    segments[i] = {is_elsewhere ? end : group.store().slice(i).shard_offset, end};
    end = segments[i].begin;
  }
  return segments;
}

}  // namespace

at::Tensor UnitParams::part_of(const at::Tensor& flat, size_t index) const {
  return flat.narrow(0, params[index].state_begin, group->store().slice(indices[index]).numel());
}

void UnitParams::drop_gradients() const {
  if (has_all()) {
    group->drop_gradient();
  } else {
    group->drop_gradients(indices);
  }
}

UnitParams params_in(const std::shared_ptr<ParamGroup>& group, const std::vector<ParamRef>& params,
                     const std::vector<std::optional<size_t>>& group_of) {
  std::vector<std::optional<size_t>> param_group(group->size());
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].group == group.get()) {
      param_group[params[i].index] = group_of[i];
    }
  }
  UnitParams unit;
  unit.group = group;
  const std::vector<ShardSegment> segments = segments_of(*group);
  for (size_t i = 0; i < group->size(); ++i) {
    if (param_group[i]) {
      unit.params.push_back({segments[i], unit.state_numel, *param_group[i]});
      unit.indices.push_back(i);
      unit.state_numel += segments[i].numel();
    }
  }
  return unit;
}

}  // namespace fsdp
