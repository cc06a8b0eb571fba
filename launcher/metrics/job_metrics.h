#pragma once

#include <cstdint>

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/metrics/job_history.h"
#include "launcher/metrics/metric_page.h"

namespace fsdprun {

/// What is known of a job besides its status and its history.
struct JobCounts {
  /// Messages of agents or worlds that were replaced.
  uint64_t fenced = 0;
  /// Messages to agents that wait to be sent.
  uint64_t outbox = 0;
  Duration node_lease{};
  /// When the coordinator began, in seconds since 1970.
  double began_unix_s = 0;
};

/// Of so many nodes each has a row of its own; where there are more, only those that are in
/// trouble, and of these so many that were heard least recently.
inline constexpr int kMaxNodeRows = 32;

/// What the coordinator of a job knows. `status` has no ledger. Pure. O(nodes).
void CollectJob(const v1::JobStatus& status, const JobHistory& history, const JobCounts& counts,
                MonoTime now, MetricPage* page);

}  // namespace fsdprun
