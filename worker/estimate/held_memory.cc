#include "worker/estimate/held_memory.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "formats/models/block_names.h"
#include "fsdp_runtime/plan/group_layout.h"

namespace fsdprun::worker {
namespace {

namespace plan = fsdp::plan;

/// Of the pages of most machines.
constexpr int64_t kPageBytes = 4096;

/// The dtypes of one group.
struct ElementBytes {
  int64_t compute = 4;
  int64_t reduce = 4;
  int64_t kept = kMasterBytes;
};

ElementBytes ElementBytesOf(const TrainConfig::Precision& precision) {
  return {BytesOfDtype(precision.param), BytesOfDtype(precision.reduce), kMasterBytes};
}

int64_t PageBytes(const Arrangement& arrangement) {
  const bool has_copies = arrangement.copies > 1 && !arrangement.is_gpu;
  if (has_copies) {
    return kPageBytes;
  }
  return arrangement.shard_ranks > 1 ? arrangement.window_alignment : 0;
}

plan::GroupLayout LayoutOf(const std::vector<EstimatedWeight>& weights,
                           const std::vector<size_t>& indices, const Arrangement& arrangement,
                           const ElementBytes& bytes) {
  std::vector<plan::ParamShape> shapes;
  shapes.reserve(indices.size());
  for (const size_t index : indices) {
    shapes.push_back({weights[index].name, weights[index].shape});
  }
  return plan::make_group_layout(shapes, arrangement.shard_ranks,
                                 PageBytes(arrangement) / bytes.compute);
}

bool ReadsInPlace(const plan::GroupLayout& layout, const Arrangement& arrangement,
                  const ElementBytes& bytes) {
  return layout.is_paged && arrangement.shard_ranks > 1 && arrangement.window_alignment > 0 &&
         layout.shard_numel * bytes.compute % arrangement.window_alignment == 0;
}

/// What the engine says of such a group (fsdp_runtime/src/engine/planned_memory.cc).
plan::GroupMemory MemoryOf(const plan::GroupLayout& layout, const Arrangement& arrangement,
                           const ElementBytes& bytes, bool adds_gradients) {
  const bool is_reduced_in_float32 = bytes.reduce == kMasterBytes;
  const bool adds_in_place = arrangement.shard_ranks > 1 && arrangement.copies == 1 &&
                             is_reduced_in_float32 && !arrangement.is_gpu;
  return {.numel = layout.numel(),
          .ranks = arrangement.shard_ranks,
          .master_bytes = bytes.kept,
          .compute_bytes = bytes.compute,
          .reduce_bytes = bytes.reduce,
          .is_windowed = ReadsInPlace(layout, arrangement, bytes),
          .has_parameters_in_place = arrangement.shard_ranks == 1 && bytes.compute == bytes.kept,
          .has_gradients_in_place = arrangement.ranks == 1 && is_reduced_in_float32,
          .reduces_to_slot = !is_reduced_in_float32 || (adds_gradients && !adds_in_place)};
}

}  // namespace

Arrangement ArrangementOf(const TrainConfig::Parallel& parallel, int64_t ranks) {
  if (ranks % parallel.dp_replicate != 0) {
    throw ConfigError("parallel.dp_replicate is " + std::to_string(parallel.dp_replicate) +
                      ", and " + std::to_string(ranks) +
                      " ranks cannot be divided into as many equal parts; set it to a divisor of " +
                      std::to_string(ranks) + " or change the number of workers");
  }
  Arrangement arrangement;
  arrangement.ranks = ranks;
  arrangement.copies = parallel.dp_replicate;
  arrangement.shard_ranks = ranks / parallel.dp_replicate;
  arrangement.is_gpu = parallel.backend != "shm" && parallel.backend != "gloo";
  arrangement.window_alignment = parallel.backend == "shm" ? kPageBytes : 0;
  return arrangement;
}

std::vector<WeightGroup> GroupsOf(const std::vector<EstimatedWeight>& weights,
                                  const TrainConfig& config, const Arrangement& arrangement,
                                  int64_t forwards) {
  std::vector<WeightGroup> groups;
  // By unit and by whether it is trained: the number of the group, in the order of its first one.
  std::map<std::pair<int64_t, bool>, size_t> group_of;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::optional<int64_t> block = BlockOf(weights[i].name);
    const int64_t unit = block ? *block + 1 : 0;
    const auto [found, is_new] =
        group_of.try_emplace({unit, weights[i].is_trainable}, groups.size());
    if (is_new) {
      groups.push_back({unit, {}, 0, {}});
    }
    groups[found->second].weights.push_back(i);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const WeightGroup& a, const WeightGroup& b) { return a.unit < b.unit; });
  ElementBytes bytes = ElementBytesOf(config.precision);
  for (WeightGroup& group : groups) {
    bytes.kept = weights[group.weights.front()].kept_bytes;
    const plan::GroupLayout layout = LayoutOf(weights, group.weights, arrangement, bytes);
    group.shard_numel = layout.shard_numel;
    group.memory =
        MemoryOf(layout, arrangement, bytes, forwards > 1 && config.train.sync_each_micro_batch);
    group.memory.unit = group.unit;
    group.memory.stays_gathered = group.unit == 0 || config.parallel.strategy != "full_shard";
    group.memory.is_trainable = weights[group.weights.front()].is_trainable;
  }
  return groups;
}

HeldMemory HeldMemoryOf(const std::vector<WeightGroup>& groups, bool keeps_whole_gradients) {
  std::vector<plan::GroupMemory> planned;
  planned.reserve(groups.size());
  std::map<int64_t, int64_t> slots;  // by size, those of which the plan has only some
  for (const WeightGroup& group : groups) {
    planned.push_back(group.memory);
    if (group.memory.is_trainable && !group.memory.has_gradients_in_place) {
      slots[group.memory.numel * group.memory.reduce_bytes] += 1;
    }
  }
  const plan::MemoryPlan plan = plan::plan_memory(planned);
  HeldMemory held{plan.shard_bytes, plan.gradient_bytes, plan.parameter_slot_bytes,
                  plan.gradient_slot_bytes};
  if (keeps_whole_gradients) {
    for (const auto& [size, count] : slots) {
      held.unreduced += size * std::max<int64_t>(0, count - plan::kGradientSlotsPerSize);
    }
  }
  return held;
}

}  // namespace fsdprun::worker
