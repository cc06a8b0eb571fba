// A job as a coordinator leaves it to the next, see Note [Taking a job over].

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

using job::NodeState;
using job::Phase;

namespace {

/// The launch goes on, and with it what an operator has changed since.
JobSpec OfSameLaunch(JobSpec spec, const job::Record& record) {
  spec.launch_id = record.launch_id;
  if (record.scaled) {
    spec.min_nodes = record.scaled->min_nodes;
    spec.max_nodes = record.scaled->max_nodes;
  }
  return spec;
}

}  // namespace

JobMachine::JobMachine(const JobSpec& spec, const job::Record& record, MonoTime now)
    : JobMachine(OfSameLaunch(spec, record)) {
  FSDPRUN_CHECK(job::WhyUnusable(record, spec).empty(), "the caller has looked at the record");
  begun_ = true;
  generation_floor_ = record.generation_floor;
  formations_ = record.formations;
  budgets_ = record.budgets;
  operator_signal_ = record.operator_signal;
  agent_told_signal_ = record.agent_told_signal;
  operator_hurries_ = record.operator_hurries;
  is_scaled_ = record.scaled.has_value();
  drained_.insert(record.drained.begin(), record.drained.end());
  quarantine_.Restore(record.quarantine, now);
  world_.Restore(record.world, record.generation, record.nodes, now);
  if (formations_ > 1 || (formations_ == 1 && world_.phase() != World::Phase::kPreparing)) {
    membership_.JobRuns(now);
  }
  for (const job::NodeRecord& node : record.nodes) {
    const NodeState state = record.is_over                                  ? NodeState::kReleased
                            : world_.Find(node.info.incarnation) != nullptr ? NodeState::kMember
                                                                            : NodeState::kSpare;
    membership_.Restore(node, state, now);
    Node& restored = membership_.nodes().At(node.info.incarnation);
    LeaveOutIfHeld(restored);
    if (IsDrained(node.info.incarnation)) {
      membership_.SetLeaving(restored);
    }
  }
  if (record.outcome) {
    ending_.Restore(*record.outcome, record.nodes.empty() ? now : now + spec_.rejoin_grace);
    SetReason(record.outcome->reason);
  } else if (phase() == Phase::kRendezvous) {
    rendezvous_.Begin(record.pause, now);
    SetReason("waiting for nodes, after this coordinator was started again");
  } else {
    SetReason("waiting for the nodes of generation " + std::to_string(generation().value()) +
              " to come again, after this coordinator was started again");
  }
  before_ = Now();
  promised_wake_ = NextWake();
}

JobMachine::Milestones JobMachine::Now() const {
  return {generation(),
          budgets_.restarts_used,
          budgets_.membership_changes,
          formations_,
          outcome().has_value(),
          ending_.is_finished(),
          generation_floor_,
          operator_signal_.has_value(),
          operator_hurries_,
          agent_told_signal_,
          departures_,
          world_.changes(),
          quarantine_.changes(),
          {spec_.min_nodes, spec_.max_nodes},
          drained_.size()};
}

bool JobMachine::HasRecordChanged() const {
  const Milestones now = Now();
  const bool has_short_changed = now.generation != before_.generation ||
                                 now.outcome_decided != before_.outcome_decided ||
                                 now.restarts_used != before_.restarts_used ||
                                 now.membership_changes != before_.membership_changes;
  return has_short_changed || (spec_.keeps_record() && !(now == before_));
}

job::Record JobMachine::ToRecord() const {
  job::Record record;
  record.generation = generation();
  record.budgets = budgets_;
  record.is_over = outcome().has_value();
  if (!spec_.keeps_record()) {
    return record;
  }
  record.launch_id = spec_.launch_id;
  record.generation_floor = std::max(generation(), generation_floor_);
  record.formations = formations_;
  record.operator_signal = operator_signal_;
  record.agent_told_signal = agent_told_signal_;
  record.operator_hurries = operator_hurries_;
  record.pause = rendezvous_.pause();
  record.world = world_.ToRecord();
  record.quarantine = quarantine_.ToRecord();
  record.nodes = membership_.Records(/*all=*/record.is_over);
  if (is_scaled_) {
    record.scaled = {spec_.min_nodes, spec_.max_nodes};
  }
  record.drained.assign(drained_.begin(), drained_.end());
  record.outcome = outcome();
  return record;
}

}  // namespace fsdprun
