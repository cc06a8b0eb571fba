#include "launcher/chaos/run/job_follower.h"

#include <algorithm>

namespace fsdprun::chaos {

std::vector<JobEntry> JobFollower::WhomToAsk(const std::vector<JobEntry>& jobs) const {
  if (!job_.has_value()) {
    return {jobs.begin(), jobs.begin() + (jobs.empty() ? 0 : 1)};
  }
  if (IsThere(jobs)) {
    return {*job_};
  }
  // Until it has answered, nothing tells it from another one of its run id.
  std::vector<JobEntry> successors;
  for (const JobEntry& job : jobs) {
    if (has_answered_ && job.run_id == job_->run_id && job.began_ms > job_->began_ms &&
        strangers_.count(KeyOf(job)) == 0) {
      successors.push_back(job);
    }
  }
  return successors;
}

bool JobFollower::Takes(const JobEntry& job, const v1::JobStatus& status) {
  if (!pin_.Takes(status)) {
    strangers_.insert(KeyOf(job));
    return false;
  }
  has_answered_ = true;
  job_ = job;
  return true;
}

bool JobFollower::IsThere(const std::vector<JobEntry>& jobs) const {
  if (!job_.has_value()) {
    return !jobs.empty();
  }
  return std::any_of(jobs.begin(), jobs.end(),
                     [this](const JobEntry& job) { return KeyOf(job) == KeyOf(*job_); });
}

bool JobFollower::IsReplaced(const std::vector<JobEntry>& jobs) const {
  if (!has_answered_ || IsThere(jobs)) {
    return false;
  }
  return std::any_of(jobs.begin(), jobs.end(), [this](const JobEntry& job) {
    return job.run_id != job_->run_id || strangers_.count(KeyOf(job)) > 0;
  });
}

}  // namespace fsdprun::chaos
