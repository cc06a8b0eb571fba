#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "worker/data/windows.h"
#include "worker/run/sharded_model.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

struct EvaluationOptions {
  /// Windows in a forward at most, which changes the result by rounding alone.
  int64_t batch_size = 0;
  /// Per rank; 0: all.
  int64_t windows = 0;
  /// Forwards from one look at the request to stop to the next; the same on all ranks.
  int64_t forwards_per_poll = 1;
  /// Whether this rank was asked to stop.
  std::function<bool()> is_stop_requested;
};

/// Mean loss over the first of `windows`: rank r takes windows j * world + r, so every evaluation
/// uses the same windows, and each once. Where some targets do not count, it is the mean over those
/// that do. The loss is that of the model's kernels. Collective.
/// Returns nullopt if some rank was asked to stop: all ranks then leave after the same forward.
std::optional<double> Evaluate(const World& world, ShardedModel& model, const Windows& windows,
                               const EvaluationOptions& options);

}  // namespace fsdprun::worker
