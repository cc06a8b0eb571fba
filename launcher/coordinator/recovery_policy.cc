#include "launcher/coordinator/recovery_policy.h"

#include <algorithm>
#include <utility>

namespace fsdprun::job {

namespace {

/// The first pause of a row is the shortest, and each further one twice as long, up to the longest.
Duration PauseAfter(int failures_in_a_row, const JobSpec& spec) {
  Duration pause = spec.restart_backoff;
  for (int i = 1; i < failures_in_a_row && pause < spec.max_restart_backoff; ++i) {
    pause *= 2;
  }
  return std::min(pause, spec.max_restart_backoff);
}

Recovery Reform(const RecoveryBudgets& budgets) {
  Recovery recovery{.rung = Rung::kReform, .budgets = budgets, .pause = {}, .why = {}};
  ++recovery.budgets.membership_changes;
  return recovery;
}

Recovery Restart(Duration ran_for, const RecoveryBudgets& budgets, const JobSpec& spec) {
  Recovery recovery{.rung = Rung::kRestart, .budgets = budgets, .pause = {}, .why = {}};
  ++recovery.budgets.restarts_used;
  recovery.budgets.worlds_of_attempt = 0;
  if (spec.restart_backoff > Duration{}) {
    int& row = recovery.budgets.failures_in_a_row;
    row = ran_for > spec.max_restart_backoff ? 1 : row + 1;
    recovery.pause = PauseAfter(row, spec);
  }
  return recovery;
}

}  // namespace

Recovery Recover(const WorldEnd& end, const RecoveryBudgets& budgets, const JobSpec& spec) {
  const auto end_with = [&budgets](Rung rung, std::string why = "") {
    return Recovery{.rung = rung, .budgets = budgets, .pause = {}, .why = std::move(why)};
  };
  const bool is_failure = end.kind == StopKind::kFailure;
  if (end.is_done) {
    return end_with(Rung::kSucceed);
  }
  if (end.is_stopped_by_operator) {
    return end_with(Rung::kStopForOperator);
  }
  if (is_failure && end.is_permanent) {
    return end_with(Rung::kGiveUp,
                    "a worker reported a configuration error, which a restart cannot fix");
  }
  if (is_failure && end.is_final_hang) {
    return end_with(Rung::kGiveUp, "a hang ends the job (--on-hang=abort)");
  }
  if (is_failure && budgets.restarts_used == spec.max_restarts) {
    return end_with(Rung::kGiveUp,
                    spec.max_restarts == 0
                        ? "no restarts are allowed (--max-restarts 0)"
                        : "all " + std::to_string(spec.max_restarts) + " restarts are used up");
  }
  if (end.is_place_lost) {
    return end_with(Rung::kLeaveToOtherHost);
  }
  return is_failure ? Restart(end.ran_for, budgets, spec) : Reform(budgets);
}

StopKind KindOf(const MemberLoss& loss) {
  const bool is_harmless = !loss.has_begun && loss.cause == CauseKind::kNodeLost;
  return loss.was_leaving || loss.was_done || is_harmless ? StopKind::kMembership
                                                          : StopKind::kFailure;
}

Duration GraceOf(StopKind kind, const JobSpec& spec) {
  return kind == StopKind::kFailure ? std::min(spec.abort_grace, spec.stop_grace) : spec.stop_grace;
}

}  // namespace fsdprun::job
