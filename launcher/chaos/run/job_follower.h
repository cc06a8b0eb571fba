#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fsdpctl/jobs/job_pin.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/control/job_file.h"

namespace fsdprun::chaos {

/// Finds a job again whose coordinator may die and be started again: the job that has answered
/// first, and no other one that takes its place or has its run id. Pure.
class JobFollower {
 public:
  /// `job`: the one that is meant; unset: the oldest of those that there are at first.
  explicit JobFollower(std::optional<JobEntry> job) : job_(std::move(job)) {}

  /// Who of `jobs`, the oldest first, may be the job: to be asked one after the other until an
  /// answer is taken.
  std::vector<JobEntry> WhomToAsk(const std::vector<JobEntry>& jobs) const;
  /// Whether it is the job that has answered so.
  bool Takes(const JobEntry& job, const v1::JobStatus& status);
  /// The process that has answered last, or that is to answer first, is among them.
  bool IsThere(const std::vector<JobEntry>& jobs) const;
  /// The job has answered, is not there any more, and there is another one.
  bool IsReplaced(const std::vector<JobEntry>& jobs) const;

 private:
  /// Of a process as the host of one job.
  using Key = std::pair<int64_t, int64_t>;

  static Key KeyOf(const JobEntry& job) { return {job.pid, job.began_ms}; }

  JobPin pin_{"", /*is_here=*/true};
  bool has_answered_ = false;
  std::optional<JobEntry> job_;
  /// Others, by their answers.
  std::set<Key> strangers_;
};

}  // namespace fsdprun::chaos
