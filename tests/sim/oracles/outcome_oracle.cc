#include "tests/sim/oracles/outcome_oracle.h"

#include <algorithm>

namespace fsdprun::sim {

namespace {

/// A node that is cut off is no more there than one that is gone, and this long a cut may last.
constexpr Nanos kLongestCut = 15 * kSecond;

std::string Named(Generation g) { return "generation " + std::to_string(g.value()); }

}  // namespace

void OutcomeOracle::WorldOrdered(Generation g, int restart_count, int world_size) {
  if (g <= last_) {
    return;
  }
  const int charged = restart_count - last_restart_count_;
  if (charged < 0 || charged > 1) {
    Complain("between " + Named(last_) + " and " + Named(g) + " " + std::to_string(charged) +
             " restarts were charged");
  }
  if (last_ != Generation{}) {
    CheckCharge(last_, charged > 0);
  } else if (charged > 0) {
    Complain("a restart was charged before the first world");
  }
  last_ = g;
  last_restart_count_ = restart_count;
  last_world_size_ = world_size;
  last_started_.clear();
  last_stopped_ = false;
}

void OutcomeOracle::StopOrdered(Generation g) { last_stopped_ = last_stopped_ || g == last_; }

void OutcomeOracle::RankStarted(Generation g, int rank) {
  if (g == last_) {
    last_started_.insert(rank);
  }
}

void OutcomeOracle::RankFinished(Generation g, int rank) { finished_[g].insert(rank); }

void OutcomeOracle::NodeArrived(int place) {
  ++nodes_[place];
  if (static_cast<int>(nodes_.size()) >= job_.min_nodes) {
    too_few_since_ = kForever;
  }
}

void OutcomeOracle::NodeGone(Nanos at, int place) {
  if (--nodes_[place] == 0) {
    nodes_.erase(place);
  }
  if (static_cast<int>(nodes_.size()) < job_.min_nodes) {
    too_few_since_ = std::min(too_few_since_, at);
  }
}

void OutcomeOracle::Scaled(Nanos at, int min_nodes) {
  job_.min_nodes = min_nodes;
  const bool are_enough = static_cast<int>(nodes_.size()) >= min_nodes;
  too_few_since_ = are_enough ? kForever : std::min(too_few_since_, at);
}

void OutcomeOracle::Decided(Nanos at, const JobOutcome& outcome) {
  decided_ = true;
  if ((outcome.exit_code == 0) != (outcome.kind == OutcomeKind::kSucceeded)) {
    Complain("exit code " + std::to_string(outcome.exit_code) + " does not fit the outcome");
  }
  switch (outcome.kind) {
    case OutcomeKind::kSucceeded:
      CheckSuccess(outcome);
      return;
    case OutcomeKind::kFailed:
      CheckFailure(at, outcome);
      return;
    case OutcomeKind::kStoppedBySignal:
      if (!stop_heard_ && !stop_explained_) {
        Complain("the job claims to have been stopped by a signal that nobody sent");
      }
      return;
  }
}

bool OutcomeOracle::IsSettled() const {
  const bool runs = last_world_size_ > 0 && !last_stopped_ && !stop_heard_ &&
                    static_cast<int>(last_started_.size()) == last_world_size_;
  return decided_ || coordinator_died_ || runs;
}

void OutcomeOracle::SettlingTimePassed() {
  if (!IsSettled()) {
    Complain(stop_heard_
                 ? "the job goes on although an operator has stopped it long ago"
                 : "the job is neither running nor finished although faults ended long ago");
  }
}

void OutcomeOracle::DeadlinePassed(Nanos at) {
  const bool may_wait_for_nodes = !stop_heard_ && too_few_since_ != kForever &&
                                  at - too_few_since_ <= job_.join_timeout + ledger_.aftermath();
  if (!decided_ && !coordinator_died_ && !may_wait_for_nodes) {
    Complain(stop_heard_ ? "the job goes on although an operator has stopped it long ago"
                         : "the job has not done its work although faults ended long ago");
  }
}

void OutcomeOracle::CheckSuccess(const JobOutcome& outcome) {
  const int finished = static_cast<int>(finished_[outcome.generation].size());
  if (outcome.generation != last_ || finished != last_world_size_ || last_world_size_ == 0) {
    Complain("the job claims success, but only " + std::to_string(finished) + " of " +
             std::to_string(last_world_size_) + " ranks of " + Named(outcome.generation) +
             " have done their work");
  }
}

void OutcomeOracle::CheckFailure(Nanos at, const JobOutcome& outcome) {
  if (stop_heard_) {
    Complain("the operator had stopped the job, which yet ended as a failure");
  }
  if (!outcome.failure) {
    Complain("the job failed without a failure report");
  } else if (outcome.failure->root.kind == CauseKind::kJoinTimeout) {
    if (too_few_since_ == kForever || at - too_few_since_ < job_.join_timeout - kLongestCut) {
      Complain("the job gave up for want of nodes, of which there were enough");
    }
    return;
  } else if (outcome.failure->root.kind == CauseKind::kCannotStart) {
    CountQuestion();
    if (!program_is_missing_ || last_ != Generation{}) {
      Complain("the job gave up for want of the program, which every node had or has run");
    }
    return;
  } else if (place_is_taken_ && outcome.reason == kPlaceTaken) {
    CountQuestion();
    return;
  }
  if (last_ == Generation{}) {
    Complain("the job failed before its first world");
    return;
  }
  CheckCharge(last_, true);
  if (last_restart_count_ < job_.max_restarts && !HadConfigExit(last_)) {
    Complain("the job gave up after " + std::to_string(last_restart_count_) + " of " +
             std::to_string(job_.max_restarts) + " restarts");
  }
}

void OutcomeOracle::CheckCharge(Generation g, bool charged) {
  if (!ledger_.MayHaveFailed(g) || ledger_.MustHaveFailed(g) != nullptr) {
    CountQuestion();
  }
  if (charged && !ledger_.MayHaveFailed(g)) {
    Complain(Named(g) +
             " was charged as a failure, but nothing was injected that can have failed it");
  }
  if (!charged && ledger_.MustHaveFailed(g) != nullptr) {
    Complain(Named(g) + " was not charged as a failure, although a fault on " +
             ledger_.MustHaveFailed(g)->node_name + " broke it");
  }
  if (!charged && !ledger_.MayHaveFailed(g) && !ledger_.MayHaveChangedMembers(g)) {
    Complain(Named(g) + " was given up, but nothing had failed, and no node had come or left");
  }
}

bool OutcomeOracle::HadConfigExit(Generation g) const {
  const std::vector<InjectedFault>& faults = ledger_.faults();
  return std::any_of(faults.begin(), faults.end(), [&](const InjectedFault& fault) {
    return fault.kind == FaultKind::kConfigExit && fault.generation == g;
  });
}

}  // namespace fsdprun::sim
