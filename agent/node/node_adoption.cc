// The record that an agent leaves to the next, and what the next makes of it. See Note [Adopting
// workers].
#include <utility>

#include "agent/node/node_machine_internal.h"

namespace fsdprun {
namespace {

/// What the keeper tells anew decides between those.
node::Phase Recorded(node::Phase phase, bool is_spawned) {
  switch (phase) {
    case node::Phase::kRunning:
      return node::Phase::kSpawning;
    case node::Phase::kWedged:
      return node::Phase::kKilling;
    case node::Phase::kGone:
      return is_spawned ? node::Phase::kKilling : phase;
    default:
      return phase;
  }
}

}  // namespace

/// Only if something of it has changed, which no heartbeat and no exit does.
void NodeMachine::KeepRecord(Out& out) {
  const Kept now{.generation = generation(),
                 .highest_seen = highest_seen_,
                 .phase = Recorded(phase_, is_spawned_),
                 .kill_at = kill_at_,
                 .leaving = HowItLeaves(),
                 .reports = reports_.CountUnrepeatable(),
                 .was_admitted = contact_.was_ever_admitted(),
                 .may_be_taken_over = contact_.expects_successor(),
                 .node_lease = contact_.node_lease()};
  if (kept_ != now) {
    kept_ = now;
    out.effects.persist = MakeRecord();
  }
}

std::optional<node::Leaving> NodeMachine::HowItLeaves() const {
  std::optional<node::Leaving> leaving = leaving_;
  if (leaving) {
    leaving->exit_at = exit_at_;
  }
  return leaving;
}

/// An order that waits is not taken: the coordinator repeats it.
NodeRecord NodeMachine::MakeRecord() const {
  NodeRecord record{.incarnation = spec_.node.incarnation,
                    .highest_seen = next_assignment_ ? generation() : highest_seen_,
                    .assignment = assignment_,
                    .phase = Recorded(phase_, is_spawned_),
                    .kill_at = kill_at_,
                    .leaving = HowItLeaves(),
                    .was_admitted = contact_.was_ever_admitted(),
                    .may_be_taken_over = contact_.expects_successor(),
                    .node_lease = contact_.node_lease()};
  record.reports = reports_.Unrepeatable();
  workers_.Stopped(record.stop_signal, record.stopped_at, record.killed_at);
  return record;
}

void NodeMachine::Handle(const node::Resume& resume, Out& out) {
  const NodeRecord& record = resume.record;
  highest_seen_ = record.highest_seen;
  assignment_ = record.assignment;
  phase_ = record.phase;
  kill_at_ = record.kill_at;
  leaving_ = record.leaving;
  exit_at_ = leaving_ ? leaving_->exit_at : MonoTime::max();
  workers_.Begin(assignment_);
  workers_.Resume(record.stop_signal, record.stopped_at, record.killed_at);
  for (const NodeRecord::Report& report : record.reports) {
    reports_.Add(report.message, report.happened_at, out.now);
  }
  reports_.KeeperForgets();
  keeper_.Ready(out.now);
  if (record.was_admitted) {
    contact_.Resume(record.node_lease, out.now);
    contact_.ExpectSuccessor(record.may_be_taken_over);
  } else {
    contact_.Begin(out.now);
  }
  SetReason("going on in the place of an agent that was lost, with generation " +
            std::to_string(generation().value()));
  ResumePhase(out);
  if (leaving_ && !MayHaveProcesses()) {
    FinishExit(out);
    return;
  }
  out.effects.actions.emplace_back(node::ReconnectStream{});
}

void NodeMachine::ResumePhase(Out& out) {
  switch (phase_) {
    case node::Phase::kIdle:
    case node::Phase::kPrepared:
      return;
    case node::Phase::kPreparing:  // Nobody was told that it is done.
      prepare_started_ = true;
      out.effects.actions.emplace_back(node::PrepareNode{assignment_, assignment_.group_rank == 0});
      return;
    case node::Phase::kSpawning:
    case node::Phase::kRunning:
      phase_ = node::Phase::kSpawning;
      is_spawned_ = true;
      contact_.JobRuns();
      out.effects.actions.emplace_back(node::SpawnWorkers{assignment_});
      return;
    case node::Phase::kStopping:
      is_spawned_ = true;
      contact_.JobRuns();
      out.effects.actions.emplace_back(node::AdoptWorkers{assignment_});
      return;
    case node::Phase::kKilling:
    case node::Phase::kWedged:
      phase_ = node::Phase::kKilling;
      is_spawned_ = true;
      contact_.JobRuns();
      kill_at_ = MonoTime::max();
      wedged_at_ = out.now + spec_.kill_wait;
      out.effects.actions.emplace_back(node::AdoptWorkers{assignment_});
      out.effects.actions.emplace_back(node::KillWorkers{generation()});
      return;
    case node::Phase::kGone:
      reports_.Add(WorkersStopped{}, out.now, out.now);
      return;
  }
}

}  // namespace fsdprun
