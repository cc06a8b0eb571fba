#pragma once

#include <optional>
#include <string>
#include <vector>

#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// What is known of a job.
struct Snapshot {
  /// Absent: it has not answered yet.
  std::optional<v1::JobStatus> status;
  /// Lines for people, the oldest first.
  std::vector<std::string> events;
  /// What is wrong with the connection to the job, as a sentence; empty: nothing.
  std::string trouble;
  /// As seen since the beginning; absent: not seen yet.
  std::optional<double> steps_per_second;
};

}  // namespace fsdprun::top
