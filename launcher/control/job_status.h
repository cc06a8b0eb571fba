#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/mono_time.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/coordinator/job_machine.h"

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
};

/// The state of a job, for operators. Pure. O(nodes).
v1::JobStatus DescribeJob(const JobMachine& machine, const JobFacts& facts, MonoTime now);

}  // namespace fsdprun
