#include "launcher/watch/watched_rank.h"

#include <algorithm>
#include <utility>

namespace fsdprun::watch {
namespace {

bool IsStoppedState(char state) { return state == 'T' || state == 't' || state == 'Z'; }

bool HasMoved(const OwnSample& before, const OwnSample& after) {
  return before.step != after.step || before.begun != after.begun || before.ended != after.ended ||
         before.activity != after.activity;
}

/// Of a time that goes on as long as `still` is true.
void AddWhile(bool still, Duration seen, Duration* total) {
  *total = still ? *total + seen : Duration{};
}

}  // namespace

WatchedRank::Moved WatchedRank::Take(Sample sample, MonoTime now, Duration every) {
  if (!is_seen_ || sample.pid != last_.pid || sample.own.has_value() != tells()) {
    Begin(std::move(sample), now);
    return {};
  }
  const Duration real = std::max(Duration{}, now - seen_at_);
  const Duration longest(static_cast<int64_t>(static_cast<double>(every.count()) * kGapsSeen));
  const Duration seen = std::min(real, longest);
  NoteOutside(sample, seen, real);
  const Moved moved = NoteMovement(sample, seen, real);
  last_ = std::move(sample);
  seen_at_ = now;
  return moved;
}

void WatchedRank::Begin(Sample sample, MonoTime now) {
  *this = WatchedRank();
  is_seen_ = true;
  seen_at_ = now;
  if (sample.own.has_value()) {
    first_step_ = sample.own->step;
    first_ended_ = sample.own->ended;
  }
  last_ = std::move(sample);
}

WatchedRank::Moved WatchedRank::NoteMovement(const Sample& sample, Duration seen, Duration real) {
  if (!tells()) {
    silent_ += seen;
    return {};
  }
  if (IsStopped() || IsStoppedState(sample.state)) {
    // Who has stopped it did that: it says nothing of how long the work takes.
    StandAnew();
    return {};
  }
  if (!HasMoved(*last_.own, *sample.own)) {
    stood_ += seen;
    real_stood_ += real;
    cpu_stood_ += sample.cpu - last_.cpu;
    return {};
  }
  first_step_ = first_step_ < 0 ? sample.own->step : first_step_;
  const Moved moved{true, stood_, last_.own->activity, last_.own->IsInCollective()};
  stood_ = real_stood_ = cpu_stood_ = Duration{};
  return moved;
}

void WatchedRank::NoteOutside(const Sample& sample, Duration seen, Duration real) {
  const Duration used = sample.cpu - last_.cpu;
  const bool is_idle = static_cast<double>(used.count()) <
                       kIdleShare * static_cast<double>(std::max<int64_t>(1, real.count()));
  AddWhile(IsStopped() && IsStoppedState(sample.state), seen, &stopped_);
  AddWhile(last_.state == 'D' && sample.state == 'D' && is_idle, seen, &asleep_);
  AddWhile(is_idle, seen, &idle_);
}

bool WatchedRank::IsStopped() const { return IsStoppedState(last_.state); }

int64_t WatchedRank::steps_done() const {
  return tells() && first_step_ >= 0 ? last_.own->step - first_step_ : 0;
}

uint64_t WatchedRank::collectives_done() const {
  return tells() ? last_.own->ended - first_ended_ : 0;
}

}  // namespace fsdprun::watch
