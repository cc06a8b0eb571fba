#pragma once

#include <cstdint>
#include <string>

#include "base/mono_time.h"
#include "fsdprun/v1/aside.pb.h"
#include "launcher/metrics/metric_page.h"
#include "launcher/metrics/node_tally.h"

namespace fsdprun {

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
  /// How its workers are.
  v1::NodeVitals vitals;
};

/// What the agent of a node knows. Pure.
void CollectNode(const NodeSnapshot& node, const NodeTally& tally, MonoTime now, MetricPage* page);

}  // namespace fsdprun
