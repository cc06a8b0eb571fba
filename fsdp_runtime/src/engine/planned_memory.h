#pragma once

#include <fsdp/export.h>
#include <fsdp/fully_shard.h>

#include "fsdp_runtime/plan/memory_plan.h"

namespace fsdp {

/// How a model is trained, as far as the engine's memory depends on it.
struct TrainingMode {
  bool adds_gradients = false;       // of several backwards, which are all reduced
  bool puts_off_all_reduce = false;  // of all but the last of them (set_requires_all_reduce)
};

/// The memory that the units below `root` and an AdamW of theirs take on this rank, if they run in
/// the order in which they are registered. Offloaded shards and gradients count as if they were on
/// the device; not counted are the memory of the host that gradients arrive in beside others, and
/// that of the device for a shard ahead of its cast.
FSDP_API plan::MemoryPlan planned_memory(const FSDPModule& root, const TrainingMode& mode = {});

}  // namespace fsdp
