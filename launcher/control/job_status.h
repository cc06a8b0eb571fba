#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/watch/findings.h"

namespace fsdprun {

/// What the machine of a job does not know about it.
struct JobFacts {
  std::string run_id;
  /// Of the coordinator's node.
  std::string node;
  int64_t pid = 0;
  /// Where nodes join; empty if none can.
  std::string endpoint;
  int max_restarts = 0;
  MonoTime began{};
  /// When workers last reported progress, in this world.
  std::optional<MonoTime> progress_at;
  /// A sentence; empty without one.
  std::string last_failure;
  MonoTime last_failure_at{};
  /// What the watch over the workers has found, and is so still, by its number.
  struct Finding {
    std::string kind;
    std::string what;
    /// The first ranks it is about.
    std::vector<int> ranks;
    /// How many it is about.
    int rank_count = 0;
    MonoTime at{};
  };
  std::map<uint64_t, Finding> findings;
};

/// Adds what was found to the facts, or takes it out. Pure.
void NoteFinding(const watch::Finding& finding, MonoTime now, JobFacts* facts);

/// The state of a job, for operators. Pure. O(nodes).
v1::JobStatus DescribeJob(const JobMachine& machine, const JobFacts& facts, MonoTime now);

}  // namespace fsdprun
