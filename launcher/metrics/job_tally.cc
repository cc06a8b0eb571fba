#include "launcher/metrics/job_tally.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "launcher/ledger/time_ledger.h"

namespace fsdprun {

void JobTally::On(const job::News& news, MonoTime now) {
  std::visit([this, now](const auto& what) { Tell(what, now); }, news);
}

void JobTally::Progress(MonoTime now) {
  was_progress_told_ = true;
  failed_at_.reset();
  if (broken_since_.has_value() && !stopped_for_.has_value()) {
    until_progress_.Add(now - *broken_since_);
    broken_since_.reset();
  }
}

void JobTally::Tell(const job::Stalled& stalled, MonoTime /*now*/) { stalled_ += stalled.lateness; }
void JobTally::Tell(const job::NodeJoined& /*node*/, MonoTime /*now*/) { ++joined_; }
void JobTally::Tell(const job::NodeLost& /*node*/, MonoTime /*now*/) { ++lost_; }
void JobTally::Tell(const job::NodeQuarantined& /*node*/, MonoTime /*now*/) { ++quarantines_; }

void JobTally::Tell(const job::FailureReported& reported, MonoTime now) {
  const Failure& failure = reported.failure;
  if (failure.worker.has_value() && failure.worker->killed_by_us) {
    return;
  }
  failed_at_ = std::min(failed_at_.value_or(now), now - reported.age);
}

/// A world that is stopped before it has shown progress prolongs the outage before it; unless
/// nobody ever shows any, and it has run for long.
void JobTally::Tell(const job::WorldStopping& stopping, MonoTime now) {
  stopped_for_ = stopping.kind;
  stopped_since_ = failed_at_.value_or(now);
  if (!was_progress_told_ && started_at_.has_value() &&
      stopped_since_ - *started_at_ > TimeLedger::kLongestOpen) {
    broken_since_.reset();
  }
  broken_since_ = std::min(broken_since_.value_or(stopped_since_), stopped_since_);
  started_at_.reset();
}

void JobTally::Tell(const job::WorldStopped& stopped, MonoTime /*now*/) {
  if (stopped.root.has_value()) {
    ++faults_.at(static_cast<size_t>(*stopped.root));
  }
}

void JobTally::Tell(const job::WorldCommitted& /*committed*/, MonoTime now) {
  failed_at_.reset();
  started_at_ = now;
  if (const auto kind = std::exchange(stopped_for_, std::nullopt)) {
    ++recovered_.at(static_cast<size_t>(*kind));
    until_start_.Add(now - stopped_since_);
  }
}

void JobTally::Tell(const job::JobFinished& /*finished*/, MonoTime /*now*/) {
  if (const auto kind = std::exchange(stopped_for_, std::nullopt)) {
    ++ended_.at(static_cast<size_t>(*kind));
  }
}

}  // namespace fsdprun
