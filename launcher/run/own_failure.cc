#include "launcher/run/own_failure.h"

#include "launcher/coordinator/root_cause.h"

namespace fsdprun {

std::optional<JobOutcome> OutcomeOfOwnFailures(const NodeMachine& machine) {
  FailureLog log;
  for (const NodeMachine::OwnFailure& own : machine.OwnFailures()) {
    log.Add(own.failure, own.at, own.at);
  }
  if (log.empty()) {
    return std::nullopt;
  }
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.restarts_used = machine.assignment().restart_count;
  outcome.max_restarts = machine.assignment().max_restarts;
  outcome.generation = machine.generation();
  outcome.store = {machine.assignment().master_addr, machine.assignment().master_port};
  outcome.failure = log.Report();
  outcome.reason = outcome.failure->root.what;
  return outcome;
}

}  // namespace fsdprun
