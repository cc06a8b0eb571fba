#include "fsdp_runtime/src/engine/planned_memory.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"
#include "fsdp_runtime/src/engine/module_walk.h"

namespace fsdp {
namespace {

int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

plan::GroupMemory memory_of(ParamGroup& group, const TrainingMode& mode) {
  const ShardStore& store = group.store();
  const at::ScalarType reduced_in = group.reducer().dtype();
  const bool puts_off = group.replicas() && mode.puts_off_all_reduce;
  return {
      .numel = store.layout().numel(),
      .copied_numel = store.layout().copied_numel,
      .ranks = group.comm()->size(),
      .master_bytes = bytes_of(store.dtype()),
      .compute_bytes = bytes_of(group.unsharded().dtype()),
      .reduce_bytes = bytes_of(reduced_in),
      .is_windowed = store.window() != nullptr,
      .has_parameters_in_place = group.unsharded().is_shard_itself(),
      .has_gradients_in_place = group.reducer().next_is_local(),
      .is_trainable = group.is_trainable(),
      .reduces_to_slot = reduced_in != store.dtype() || puts_off || store.is_offloaded() ||
                         (mode.adds_gradients && !group.reducer().next_reduces_onto_gradient()),
      .keeps_row_sum = puts_off,
  };
}

}  // namespace

plan::MemoryPlan planned_memory(const FSDPModule& root, const TrainingMode& mode) {
  TORCH_CHECK(root, "planned_memory: empty FSDPModule handle; pass what fully_shard has returned");
  std::vector<plan::GroupMemory> groups;
  int64_t number = 0;
  for (const std::shared_ptr<ModuleState>& unit : units_below(root.state()->modules())) {
    const bool has_units_inside = units_below(unit->modules()).size() > 1;
    for (const std::shared_ptr<ParamGroup>& group : unit->groups()) {
      plan::GroupMemory memory = memory_of(*group, mode);
      memory.unit = number;
      memory.stays_gathered =
          has_units_inside || !unit->reshards_after_forward() || !unit->reshard_after_backward;
      memory.part_ranks = unit->part_ranks();
      groups.push_back(memory);
    }
    ++number;
  }
  return plan::plan_memory(groups);
}

}  // namespace fsdp
