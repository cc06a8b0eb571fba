#include "tests/sim/oracles/cause_oracle.h"

#include <algorithm>
#include <csignal>

namespace fsdprun::sim {

namespace {

bool IsNodeTrouble(CauseKind kind) {
  return kind == CauseKind::kNodeLost || kind == CauseKind::kNodeStuck;
}

/// What a fault is called in a report.
bool KindFits(CauseKind reported, FaultKind injected) {
  switch (injected) {
    case FaultKind::kKillWorker:
    case FaultKind::kConfigExit:
      return reported == CauseKind::kWorkerFailed;
    case FaultKind::kKillKeeper:
      return reported == CauseKind::kKeeperDied;
    case FaultKind::kFailPrepare:
      return reported == CauseKind::kPrepareFailed;
    case FaultKind::kHangPrepare:
      return reported == CauseKind::kNodeStuck;
    case FaultKind::kFailSpawn:
      return reported == CauseKind::kSpawnFailed;
    case FaultKind::kUnkillableWorker:
      return reported == CauseKind::kNodeWedged || IsNodeTrouble(reported);
    case FaultKind::kKillAgent:
    case FaultKind::kPowerOff:
    case FaultKind::kScrapNode:
    case FaultKind::kNoKeeper:
    case FaultKind::kPartition:
    case FaultKind::kOneWayPartition:
    case FaultKind::kClog:
    case FaultKind::kResetStream:
    case FaultKind::kPauseAgent:
    case FaultKind::kReplaceAgent:
    case FaultKind::kPauseCoordinator:
      return IsNodeTrouble(reported);
    case FaultKind::kHangWorker:
      return reported == CauseKind::kWorkerHung;
    case FaultKind::kHangOnTerm:
    case FaultKind::kMassLeave:
    case FaultKind::kDuplicateAgent:
    case FaultKind::kOperatorStop:
    case FaultKind::kTakePlace:
    case FaultKind::kKillCoordinator:
    case FaultKind::kRestartCoordinator:
    case FaultKind::kSignalNodes:
    case FaultKind::kAskForRestart:
    case FaultKind::kDrainNode:
    case FaultKind::kScaleJob:
      return false;
  }
  return false;
}

std::string Describe(const Failure& root) {
  return "the named root cause, \"" + root.what + "\" on " + root.node_name + " in generation " +
         std::to_string(root.generation.value());
}

}  // namespace

void CauseOracle::ExitHeard(const WorkerExit& exit, Nanos failed_at) {
  const bool trails_stop = exit.after_stop && exit.signal != SIGKILL && exit.signal != SIGBUS;
  if (!trails_stop && !exit.killed_by_us) {
    const bool is_silent = exit.signal == 0 && exit.error_message.empty();
    heard_pids_.try_emplace(exit.pid, Word{{failed_at, heard_pids_.size()}, is_silent});
  }
}

void CauseOracle::NodeFaultHeard(const std::string& node_name, Generation g) {
  heard_nodes_.emplace(node_name, g);
}

void CauseOracle::Decided(const JobOutcome& outcome) {
  if (!outcome.failure || outcome.failure->root.kind == CauseKind::kJoinTimeout ||
      outcome.failure->root.kind == CauseKind::kCannotStart || outcome.reason == kPlaceTaken) {
    return;  // that no world came about, or no other, is OutcomeOracle's matter
  }
  CountQuestion();
  const Failure& root = outcome.failure->root;
  const std::vector<InjectedFault>& faults = ledger_.faults();
  if (std::any_of(faults.begin(), faults.end(), [&](const InjectedFault& fault) {
        return ledger_.MayBeRoot(fault, root.generation) && Matches(root, fault);
      })) {
    return;
  }
  const std::optional<FaultLedger::FaultId> culprit =
      root.worker ? ledger_.CulpritOf(root.worker->pid) : std::nullopt;
  if (!culprit) {
    Complain(Describe(root) + ", is no injected fault");
  } else if (!MayNameVictim(root.worker->pid, faults[*culprit])) {
    Complain(Describe(root) + ", is a victim of what was injected on " +
             faults[*culprit].node_name);
  }
}

void CauseOracle::GivenUp(Nanos at, int node, const std::string& reason) {
  if (!MayBeStuck(at, node)) {
    Complain("a node that could be reached was given up: " + reason);
  }
}

void CauseOracle::AgentExited(Nanos at, int node, int exit_code) {
  if (exit_code != 0 && told_to_go_.count(node) == 0 && !MayBeStuck(at, node)) {
    Complain("the agent of node " + std::to_string(node) + " exits with " +
             std::to_string(exit_code) + " although nothing was wrong with it");
  }
}

bool CauseOracle::MayBeStuck(Nanos at, int node) const {
  constexpr Nanos kLong = 10 * kSecond;
  const std::vector<InjectedFault>& faults = ledger_.faults();
  const bool is_stuck = std::any_of(faults.begin(), faults.end(), [&](const InjectedFault& fault) {
    const bool holds_it_up =
        fault.kind == FaultKind::kHangPrepare || fault.kind == FaultKind::kUnkillableWorker;
    return fault.node == node && holds_it_up && fault.at <= at && at <= fault.until + stuck_bound_;
  });
  return is_stuck || ledger_.IsDisturbed(node, at - kLong, at);
}

bool CauseOracle::Matches(const Failure& root, const InjectedFault& fault) {
  if (!KindFits(root.kind, fault.kind)) {
    return false;
  }
  if (fault.pid != 0 && root.kind == CauseKind::kWorkerFailed) {
    return root.worker && root.worker->pid == fault.pid && root.worker->signal == fault.signal &&
           root.worker->exit_code == fault.exit_code;
  }
  return fault.node == kCoordinatorNode || fault.node_name == root.node_name;
}

bool CauseOracle::MayNameVictim(int64_t victim, const InjectedFault& culprit) const {
  const bool notice_may_be_late =
      ledger_.IsDisturbed(culprit.node, culprit.at - kSecond, culprit.at + kSecond);
  switch (culprit.kind) {
    case FaultKind::kConfigExit:
      return heard_pids_.count(culprit.pid) == 0;
    case FaultKind::kKillWorker: {
      const auto of_culprit = heard_pids_.find(culprit.pid);
      const auto of_victim = heard_pids_.find(victim);
      if (of_culprit == heard_pids_.end() || of_victim == heard_pids_.end()) {
        return of_culprit == heard_pids_.end();
      }
      const bool is_hard = culprit.signal != 0;
      const bool is_silent = !culprit.tells_its_error || of_victim->second.is_silent;
      return !is_hard && is_silent && of_victim->second.order < of_culprit->second.order;
    }
    case FaultKind::kKillKeeper:
      return heard_nodes_.count({culprit.node_name, culprit.generation}) == 0 || notice_may_be_late;
    default:
      return notice_may_be_late;
  }
}

}  // namespace fsdprun::sim
