#include "fsdpctl/top/aging.h"

#include <algorithm>

namespace fsdprun::top {

void AddAge(int64_t ns, v1::JobStatus* status) {
  status->set_age_ns(status->age_ns() + ns);
  if (status->has_progress_age_ns()) {
    status->set_progress_age_ns(status->progress_age_ns() + ns);
  }
  if (status->has_last_failure_age_ns()) {
    status->set_last_failure_age_ns(status->last_failure_age_ns() + ns);
  }
  if (status->has_kill_in_ns()) {
    status->set_kill_in_ns(std::max<int64_t>(0, status->kill_in_ns() - ns));
  }
  for (v1::Finding& finding : *status->mutable_findings()) {
    finding.set_age_ns(finding.age_ns() + ns);
  }
  for (v1::NodeStatus& node : *status->mutable_nodes()) {
    node.set_heard_age_ns(node.heard_age_ns() + ns);
  }
  for (v1::WorkerStatus& worker : *status->mutable_workers()) {
    worker.set_vitals_age_ns(worker.vitals_age_ns() + ns);
  }
}

}  // namespace fsdprun::top
