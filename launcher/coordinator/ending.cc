#include "launcher/coordinator/ending.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdprun {

namespace {

/// How long nodes that leave one after the other are waited for in all.
constexpr Duration kLongestRelease = std::chrono::seconds(30);

}  // namespace

namespace job {
namespace {

/// `root` has ended the job; what failed in its last world came before.
FailureReport ReportAfterFailures(Failure root, const FailureLog& failures) {
  FailureReport report{std::move(root), {}, 0, failures.collateral()};
  if (!failures.empty()) {
    const FailureReport before = failures.Report();
    report.others.push_back(before.root);
    report.other_failures = 1 + before.other_failures;
    report.collateral = before.collateral;
  }
  return report;
}

/// Only collateral deaths were recorded: a worker died of a signal that its own node had sent
/// without an order of ours.
FailureReport ReportOfCollateral(const World& world) {
  Failure failure;
  failure.generation = world.generation();
  failure.what = world.stop().why;
  return {std::move(failure), {}, 0, world.failures().collateral()};
}

JobOutcome Failed(std::string reason, FailureReport report) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.reason = std::move(reason);
  outcome.failure = std::move(report);
  return outcome;
}

}  // namespace

JobOutcome Succeeded(const World& world) {
  JobOutcome outcome;
  outcome.reason = "all " + std::to_string(world.world_size()) + " workers exited with 0";
  return outcome;
}

JobOutcome StoppedBySignal(int signal, const std::string& when, bool grace_cut_short) {
  JobOutcome outcome;
  outcome.kind = OutcomeKind::kStoppedBySignal;
  outcome.exit_code = 1;
  outcome.signal = signal;
  outcome.reason = "stopped by signal " + std::to_string(signal) + when;
  outcome.grace_cut_short = grace_cut_short;
  return outcome;
}

JobOutcome FailedWith(const World& world, const std::string& why) {
  FailureReport report =
      world.failures().empty() ? ReportOfCollateral(world) : world.failures().Report();
  const Failure& root = report.root;
  std::string reason =
      root.what + (root.worker ? " on node " + root.node_name : std::string()) + "; " + why;
  return Failed(std::move(reason), std::move(report));
}

JobOutcome EndedBy(CauseKind cause, const std::string& what, const World& world) {
  Failure root;
  root.kind = cause;
  root.generation = world.generation();
  root.what = what;
  return Failed(what, ReportAfterFailures(std::move(root), world.failures()));
}

JobOutcome NeverStarted(const Failure& cause) {
  return Failed(cause.what, FailureReport{cause, {}, 0, 0});
}

}  // namespace job

void Ending::Decide(JobOutcome outcome, const World& world, const job::RecoveryBudgets& budgets,
                    MonoTime now) {
  FSDPRUN_CHECK(!outcome_, "a job ends once");
  outcome.restarts_used = budgets.restarts_used;
  outcome.max_restarts = spec_.max_restarts;
  outcome.generation = world.generation();
  if (outcome.kind == OutcomeKind::kStoppedBySignal && !world.failures().empty()) {
    outcome.failure = world.failures().Report();
  }
  outcome.store = world.store();
  outcome.ends = world.ends();
  if (spec_.exits_as_worker) {
    outcome.exit_code = ExitCodeOfCause(outcome);
  }
  outcome_ = std::move(outcome);
  deadline_ = now + spec_.release_timeout;
  latest_ = now + kLongestRelease;
}

void Ending::Restore(const JobOutcome& outcome, MonoTime deadline) {
  FSDPRUN_CHECK(!outcome_, "a job ends once");
  outcome_ = outcome;
  deadline_ = deadline;
  latest_ = deadline + kLongestRelease;
}

void Ending::PutOffDeadline(Duration delay) {
  for (MonoTime* time : {&deadline_, &latest_}) {
    *time = *time == MonoTime::max() ? *time : *time + delay;
  }
}

void Ending::HeardOfNode(MonoTime now) {
  if (deadline_ != MonoTime::max()) {
    deadline_ = std::max(deadline_, std::min(now + spec_.release_timeout, latest_));
  }
}

bool Ending::EndWaitIfDue(MonoTime now) {
  const bool is_due = now >= deadline_;
  deadline_ = is_due ? MonoTime::max() : deadline_;
  return is_due;
}

void Ending::Finish() {
  is_finished_ = true;
  deadline_ = MonoTime::max();
}

int Ending::CodeFor(const job::Node& node) const {
  const bool took_part = node.group_rank >= 0;
  const bool no_world =
      outcome_->failure && (outcome_->failure->root.kind == CauseKind::kJoinTimeout ||
                            outcome_->failure->root.kind == CauseKind::kCannotStart);
  return took_part || no_world || node.leaving ? outcome_->exit_code : 0;
}

ReleaseAgent Ending::Release(int code) const {
  return {code, outcome_->reason, !IsEndOfWorkers(*outcome_)};
}

ReleaseAgent Ending::ReleaseOf(const job::Node& node) {
  const int code = CodeFor(node);
  released_codes_[node.info.incarnation] = code;
  return Release(code);
}

ReleaseAgent Ending::ReleaseOfLate(Incarnation incarnation, Generation held) const {
  const auto released = released_codes_.find(incarnation);
  const bool was_in_last_world = held != Generation{} && held == outcome_->generation;
  ReleaseAgent release = Release(1);
  if (released != released_codes_.end()) {
    release.exit_code = released->second;
  } else if (was_in_last_world) {
    release.exit_code = outcome_->exit_code;
  } else {
    release.reason = "the job with this run id is over: " + outcome_->reason;
  }
  return release;
}

}  // namespace fsdprun
