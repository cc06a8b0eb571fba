#include "tests/sim/oracles/referee.h"

#include <utility>
#include <variant>

namespace fsdprun::sim {

Referee::Referee(OutcomeOracle::Job job, RecoveryOracle::Job recovery, SignalOracle::Job signals,
                 Bounds bounds)
    : ledger_(recovery.lease),
      overlap_(hearing_, bounds.alone),
      outcome_(ledger_, job),
      cause_(ledger_, bounds.stuck),
      shutdown_(hearing_, bounds.ended),
      recovery_(ledger_, recovery),
      place_(bounds.place_sure),
      quarantine_(ledger_, bounds.quarantine_after, bounds.quarantine_window),
      signals_(std::move(signals)),
      adoption_(bounds.adoption_lease) {}

const std::string& Referee::complaint() const {
  for (const Oracle* oracle :
       {static_cast<const Oracle*>(&signals_), static_cast<const Oracle*>(&overlap_),
        static_cast<const Oracle*>(&fence_), static_cast<const Oracle*>(&outcome_),
        static_cast<const Oracle*>(&cause_), static_cast<const Oracle*>(&recovery_),
        static_cast<const Oracle*>(&place_), static_cast<const Oracle*>(&quarantine_),
        static_cast<const Oracle*>(&load_), static_cast<const Oracle*>(&adoption_),
        static_cast<const Oracle*>(&operator_)}) {
    if (!oracle->complaint().empty()) {
      return oracle->complaint();
    }
  }
  return shutdown_.complaint();
}

std::map<std::string, int> Referee::questions() const {
  return {{"outcome", outcome_.questions()},   {"cause", cause_.questions()},
          {"overlap", overlap_.questions()},   {"fence", fence_.questions()},
          {"shutdown", shutdown_.questions()}, {"recovery", recovery_.questions()},
          {"place", place_.questions()},       {"signals", signals_.questions()},
          {"load", load_.questions()},         {"quarantine", quarantine_.questions()},
          {"adoption", adoption_.questions()}, {"operator", operator_.questions()}};
}

void Referee::AgentStarted(Nanos at, int node, int place) {
  cause_.AgentStarted(node);
  ledger_.MembershipChanged(at);
  resets_.AgentStarted(at, node, place);
  recovery_.AgentStarted(node);
  signals_.AgentStarted(node);
  agents_.erase(node);
  outcome_.NodeArrived(place);
}

void Referee::AgentDied(Nanos at, int node, int place, uint32_t life) {
  adoption_.AgentDied(node);
  overlap_.AgentDied(at, life);
  hearing_.StreamClosed(at, node);
  recovery_.AgentGone(at, node);
  signals_.AgentGone(at, node);
  outcome_.NodeGone(at, place);
}

void Referee::AgentExited(Nanos at, int node, int exit_code) {
  ledger_.MembershipChanged(at);
  shutdown_.AgentExited(at, node, exit_code);
  if (!has_ended_) {
    cause_.AgentExited(at, node, exit_code);
  }
}

void Referee::AgentLeaves(Nanos at, int node) {
  ledger_.MembershipChanged(at);
  resets_.AgentLeaves(node);
  recovery_.AgentLeaves(node);
  signals_.AgentLeaves(node);
  cause_.ToldToGo(node);
}

void Referee::StreamOpened(Nanos at, int node) {
  overlap_.HearingChanges(at, node);
  hearing_.StreamOpened(at, node);
  recovery_.StreamOpened(node);
}

void Referee::StreamClosed(Nanos at, int node) {
  overlap_.HearingChanges(at, node);
  hearing_.StreamClosed(at, node);
  recovery_.StreamClosed(at, node);
}

void Referee::CutOff(Nanos at, int node, Nanos until) {
  overlap_.HearingChanges(at, node);
  hearing_.CutOff(at, node, until);
  signals_.Disturbed(at, node, until);
  recovery_.Disturbed(at, node, until);
}

void Referee::SlowedDown(Nanos at, int node, Nanos until) {
  overlap_.HearingChanges(at, node);
  hearing_.SlowDown(node, until);
  signals_.Disturbed(at, node, until);
  recovery_.Disturbed(at, node, until);
}

void Referee::Paused(Nanos at, int node, Nanos until) {
  overlap_.HearingChanges(at, node);
  hearing_.Pause(at, node, until);
  signals_.Paused(at, node, until);
  recovery_.Disturbed(at, node, until);
}

void Referee::CoordinatorPaused(Nanos at, Nanos until) {
  overlap_.HearingChangesEverywhere(at);
  hearing_.PauseCoordinator(at, until);
  signals_.CoordinatorPaused(at, until);
  recovery_.CoordinatorPaused(at, until);
}

void Referee::CoordinatorRestarted(Nanos at, Nanos until) {
  CoordinatorPaused(at, until);
  cause_.CoordinatorRestarted();
}

void Referee::Healed(Nanos at) {
  overlap_.HearingChangesEverywhere(at);
  hearing_.Heal(at);
}

void Referee::ProcessStarted(Nanos at, const ProcessSighting& process) {
  overlap_.ProcessStarted(at, process);
}

void Referee::ProcessEnded(Nanos at, int64_t pid, int node) {
  overlap_.ProcessEnded(at, pid);
  if (unkillable_.erase(pid) == 0) {
    shutdown_.ProcessEnded(at, node);
  }
}

void Referee::BecameUnkillable(int64_t pid) {
  overlap_.BecameUnkillable(pid);
  unkillable_.insert(pid);
}

void Referee::BecameKillable(int64_t pid) {
  overlap_.BecameKillable(pid);
  unkillable_.erase(pid);
}

void Referee::StreamLossHeard(Nanos at, Incarnation agent) {
  signals_.StreamLost(at, agent);
  for (const auto& [node, incarnation] : agents_) {
    if (incarnation == agent) {
      adoption_.StreamLossHeard(at, node);
    }
  }
}

void Referee::OrderSent(Nanos at, int node, const ToAgent& order) {
  current_world_.OrderSent(order);
  const auto agent = agents_.find(node);
  const bool is_to_present_agent = agent != agents_.end() && agent->second == order.incarnation;
  if (const auto* prepare = std::get_if<PrepareGeneration>(&order.message)) {
    ledger_.WorldOrdered(at, order.generation, node);
    quarantine_.WorldOrdered(at, order.generation);
    outcome_.WorldOrdered(order.generation, prepare->assignment.restart_count,
                          prepare->assignment.world_size);
    recovery_.WorldOrdered(node, order.generation, is_to_present_agent);
    place_.WorldOrdered(order.generation);
    signals_.WorldOrdered();
    operator_.WorldOrdered(order.incarnation, order.generation);
  } else if (const auto* stop = std::get_if<StopWorkers>(&order.message)) {
    ledger_.StopOrdered(at, order.generation);
    quarantine_.StopOrdered(order.generation, stop->reason);
    outcome_.StopOrdered(order.generation);
    place_.StopOrdered(at, order.generation);
    recovery_.StopOrdered(at, node, order.generation, stop->grace.count());
    if (is_to_present_agent) {
      recovery_.ToldToStop(node, order.generation);
    }
  } else if (const auto* left_out = std::get_if<LeftOut>(&order.message)) {
    quarantine_.LeftOut(at, node, !left_out->why.empty());
    if (is_to_present_agent) {
      recovery_.LeftOut(node, !left_out->why.empty());
    }
  } else if (std::holds_alternative<CommitGeneration>(order.message)) {
    place_.WorkersOrdered(at, order.generation);
  } else if (std::holds_alternative<AdmitAgent>(order.message) && is_to_present_agent) {
    recovery_.Admitted(at, node);
    adoption_.Admitted(node);
    quarantine_.Admitted(node);
    signals_.Admitted(node, order.incarnation);
  } else if (std::holds_alternative<RejectAgent>(order.message) && is_to_present_agent) {
    recovery_.Dismissed(node);
    signals_.Dismissed(at, order.incarnation);
    if (place_is_taken_ && !std::get<RejectAgent>(order.message).rejoin) {
      cause_.ToldToGo(node);
    }
  } else if (const auto* release = std::get_if<ReleaseAgent>(&order.message)) {
    operator_.Released(order.incarnation, *release);
    cause_.ToldToGo(node);
    recovery_.Dismissed(node);
    signals_.Dismissed(at, order.incarnation);
  }
}

void Referee::OrdersGiven(Nanos at) {
  current_world_.OrdersGiven();
  recovery_.OrdersGiven(at);
  signals_.OrdersGiven(at);
}

void Referee::ReportArrives(Nanos at, int node, const FromAgent& report) {
  current_world_.ReportArrived(report);
  if (std::holds_alternative<AgentJoined>(report.message)) {
    agents_[node] = report.incarnation;
    if (report.generation == Generation{}) {
      recovery_.JoinedIdle(at, node);
    }
  } else if (std::holds_alternative<WorkersStopped>(report.message) &&
             agents_[node] == report.incarnation) {
    recovery_.StoppedHeard(at, node, report.generation);
  } else if (const auto* left = std::get_if<AgentLeft>(&report.message)) {
    signals_.LeftHeard(at, report.incarnation, *left);
  }
}

void Referee::ReportHeard(Nanos at, const std::string& node_name, const FromAgent& report) {
  if (const auto* exited = std::get_if<WorkerExited>(&report.message)) {
    cause_.ExitHeard(exited->exit, at - exited->age.count());
  } else if (const auto* ended = std::get_if<WorkersEnded>(&report.message)) {
    for (const WorkerExit& exit : ended->exits) {
      cause_.ExitHeard(exit, at);
    }
  } else if (std::holds_alternative<NodeFaulted>(report.message)) {
    cause_.NodeFaultHeard(node_name, report.generation);
  }
}

void Referee::DrainOrdered(Nanos at, int node, Incarnation agent, bool is_present) {
  OperatorOrders(at);
  operator_.DrainOrdered(agent);
  if (is_present) {
    recovery_.AgentLeaves(node);
  }
}

void Referee::Scaled(Nanos at, int min_nodes, int max_nodes) {
  OperatorOrders(at);
  outcome_.Scaled(at, min_nodes);
  recovery_.Scaled(at, min_nodes, max_nodes);
}

void Referee::PlaceTaken(Nanos at) {
  place_is_taken_ = true;
  place_.Taken(at);
  outcome_.PlaceTaken();
}

void Referee::Decided(Nanos at, const JobOutcome& outcome) {
  has_ended_ = true;
  ledger_.JobDecided(at);
  signals_.Decided(at, outcome);
  if (signals_.MayStop()) {
    outcome_.StopExplained();
  }
  outcome_.Decided(at, outcome);
  if (outcome.kind == OutcomeKind::kFailed && outcome.failure &&
      outcome.failure->root.kind != CauseKind::kJoinTimeout &&
      outcome.failure->root.kind != CauseKind::kCannotStart && outcome.reason != kPlaceTaken) {
    recovery_.WorldFailedJob(at);
  }
  cause_.Decided(outcome);
  shutdown_.Decided();
  overlap_.JobEnded(at);
}

void Referee::CoordinatorDied(Nanos at) {
  has_ended_ = true;
  outcome_.CoordinatorDied();
  shutdown_.CoordinatorDied(at);
}

}  // namespace fsdprun::sim
