#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"
#include "worker/batch/micro_batch_limit.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/config/config.h"

namespace fsdprun::worker {

/// Who asks for the limit of checkpoint.dir: Note [Out of memory].
struct LimitSeeker {
  const TrainConfig& config;
  /// As the user gave it.
  const Json& resolved;
  const ModelConfig& model;
  int64_t ranks = 1;
  /// As in MicroBatchLimit; empty: one that nobody has yet.
  std::string run;
  std::string launch;
};

struct StartLimit {
  /// That counts.
  std::optional<MicroBatchLimit> limit;
  /// Why one that is there does not, for the user; else empty.
  std::string left_aside;
};

/// What rank 0 finds, on every rank. Nothing without train.on_out_of_memory = "shrink". Collective.
/// Errors: checkpoint::CheckpointError, also for what cannot be read for now.
StartLimit FindStartLimit(const LimitSeeker& seeker, const checkpoint::Group& group);

/// Makes it the configuration's. Returns what is to be told of that.
std::string ApplyStartLimit(const MicroBatchLimit& limit, int64_t ranks, TrainConfig& config);

}  // namespace fsdprun::worker
