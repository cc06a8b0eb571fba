#include "launcher/run/job_spec.h"

#include <algorithm>
#include <limits>

namespace fsdprun {

JobSpec MakeJobSpec(const LaunchPlan& plan, const Clocks& clocks) {
  JobSpec spec;
  spec.min_nodes = plan.min_nodes;
  spec.max_nodes = plan.max_nodes;
  spec.max_restarts = plan.max_restarts;
  spec.node_ranks_bind = plan.backend == RendezvousBackend::kStatic;
  spec.restart_backoff = plan.restart_backoff;
  spec.max_restart_backoff = plan.max_restart_backoff;
  spec.quarantine_after = plan.quarantine_after;
  spec.quarantine_window = plan.quarantine_window;
  spec.suspect_after = clocks.suspect_after;
  spec.dead_after = clocks.node_lease;
  spec.join_timeout = plan.join_timeout;
  spec.last_call = plan.last_call_timeout;
  spec.stop_grace = plan.shutdown_timeout;
  spec.abort_grace = plan.abort_timeout;
  spec.exits_as_worker = plan.exit_code_style == ExitCodeStyle::kWorker;
  spec.hang_ends_job = plan.watch.on_hang == OnHang::kAbort;
  if (plan.scheduler_job.has_value()) {
    // Workers are told of the sum.
    spec.earlier_restarts =
        std::min(plan.scheduler_job->restarts, std::numeric_limits<int>::max() - plan.max_restarts);
    spec.signalled_together = {plan.scheduler_job->nodes.begin(), plan.scheduler_job->nodes.end()};
  }
  return spec;
}

JobWatch::Options MakeWatchOptions(const LaunchPlan& plan) {
  JobWatch::Options options;
  options.is_on = plan.watch.looks_for_hangs || plan.watch.straggler_ratio > 0;
  options.on_hang = plan.watch.on_hang;
  options.watch.looks_for_hangs = plan.watch.looks_for_hangs;
  options.watch.straggler_ratio = plan.watch.straggler_ratio;
  options.watch.limits.fixed = plan.watch.hang_timeout;
  options.watch.limits.warm_up = plan.watch.warm_up;
  return options;
}

bool IsStopping(const JobMachine& job) {
  return job.operator_signal().has_value() || job.outcome().has_value();
}

}  // namespace fsdprun
