#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/mono_time.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/metrics/node_tally.h"
#include "launcher/metrics/process_metrics.h"

namespace fsdprun {

/// What is known of one worker besides its tally. What workers say of themselves belongs here, too.
struct WorkerVitals {
  std::optional<ProcessUsage> usage;
  std::optional<uint64_t> proportional_bytes;
};

/// What a node's agent is like at one moment.
struct NodeSnapshot {
  /// node::PhaseName().
  std::string phase;
  uint64_t generation = 0;
  bool has_coordinator = false;
  bool has_keeper = false;
  uint64_t fenced = 0;
  /// Bytes of output that nobody was shown, because nobody took them in time.
  uint64_t dropped_output_bytes = 0;
  /// Streams of workers whose log files cannot be written.
  int lost_logs = 0;
  /// By local rank.
  std::map<int, WorkerVitals> vitals;
};

/// What the agent of a node knows. Pure.
void CollectNode(const NodeSnapshot& node, const NodeTally& tally, MonoTime now, MetricPage* page);

}  // namespace fsdprun
