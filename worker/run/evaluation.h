#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "worker/data/windows.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

struct EvaluationOptions {
  int64_t batch_size = 0;
  /// Per rank; 0: all windows.
  int64_t batches = 0;
  /// Forwards from one look at the request to stop to the next; the same on all ranks.
  int64_t forwards_per_poll = 1;
  /// Whether this rank was asked to stop.
  std::function<bool()> is_stop_requested;
};

/// Mean loss over the first of `windows`: micro batch b on rank r takes windows
/// (b * batch_size + j) * world + r, so every evaluation uses the same windows. Windows
/// past the end have weight 0, so the mean is over distinct windows. Where some targets do not
/// count, it is the mean over those that do.
/// Collective.
/// Returns nullopt if some rank was asked to stop: all ranks then leave after the same forward.
std::optional<double> Evaluate(const World& world, ShardedModel& model, const Windows& windows,
                               const EvaluationOptions& options);

}  // namespace fsdprun::worker
