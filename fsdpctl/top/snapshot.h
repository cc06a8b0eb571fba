#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdpctl/top/rank_rows.h"
#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// What is known of a job.
struct Snapshot {
  /// As told last, its ages as of now: see AddAge().
  v1::JobStatus status;
  Sight sight;
  /// Lines for people, the oldest first.
  std::vector<std::string> events;
  /// What is wrong with the connection to the job, as a sentence; empty: nothing.
  std::string trouble;
  /// As StepRate says; absent: not seen yet.
  std::optional<double> steps_per_second;
};

}  // namespace fsdprun::top
