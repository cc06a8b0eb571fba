#include "launcher/watch/progress_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fsdprun::watch {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
/// After a sample that may decide: those of the other nodes come with it.
constexpr Duration kLookSoon = std::chrono::milliseconds(100);
/// How long a node may tell nothing before the others are judged without it, at least.
constexpr Duration kWaitForNode = std::chrono::seconds(30);
/// In sampling intervals: the same where nodes tell rarely.
constexpr int kWaitIntervals = 6;
/// Of a program that counts no steps, those are its first ones.
constexpr uint64_t kWarmCollectives = 100;
/// A node that is not heard of in time for more than this share of a while is judged by what is
/// heard of it, as one that is silent: else one bad network would hide every hang.
constexpr Duration kFlapWindow = std::chrono::minutes(2);
constexpr double kFlapShare = 1.0 / 3;

}  // namespace

ProgressWatch::ProgressWatch(const Options& options)
    : options_(options), limits_(options.limits), stragglers_(options.straggler_ratio) {}

Findings ProgressWatch::Step(const Event& event, MonoTime now) {
  Findings found;
  std::visit([&](const auto& what) { Handle(what, now, &found); }, event);
  return found;
}

Duration ProgressWatch::StepLimit(MonoTime now) const {
  return limits_.LimitOf(is_warm_ ? Span::kStep : Span::kWarmUp, /*is_busy=*/false, now);
}

// --- Worlds

void ProgressWatch::Handle(const WorldBegan& began, MonoTime now, Findings* found) {
  Handle(WorldEnded{}, now, found);
  is_running_ = true;
  generation_ = began.generation;
  every_ = began.every;
  limits_.SampledEvery(every_);
  places_ = Places(began.nodes);
  ranks_.assign(static_cast<size_t>(places_.world_size()), WatchedRank());
  heard_.assign(began.nodes.size(), Heard());
  stragglers_.Begin(places_.world_size(), now);
  tells_any_ = is_warm_ = is_held_up_ = false;
  warm_longest_ = all_stood_ = all_idle_ = unreported_ = Duration{};
  all_stood_is_late_ = false;
  stopped_at_ = MonoTime::min();
  last_hang_.reset();
  reports_ = 0;
  reported_step_ = -1;
  looked_at_ = now;
  suspected_at_ = MonoTime::max();
}

void ProgressWatch::Handle(const WorldEnded&, MonoTime now, Findings* found) {
  EndHang("its world has ended", now, found);
  stragglers_.End(found);
  is_running_ = false;
  wake_at_ = MonoTime::max();
}

// --- What comes in

void ProgressWatch::Handle(const VitalsCame& vitals, MonoTime now, Findings*) {
  if (!is_running_ || vitals.generation != generation_) {
    return;
  }
  for (const Sample& sample : vitals.workers) {
    if (sample.rank >= 0 && sample.rank < places_.world_size()) {
      Take(sample, now);
    }
  }
  LookSoon(now + kLookEvery);
}

void ProgressWatch::Take(const Sample& sample, MonoTime now) {
  Heard& heard = heard_[places_.NodeIndexOf(sample.rank)];
  heard.ever = true;
  heard.at = now;
  tells_any_ = tells_any_ || sample.own.has_value();
  stragglers_.Take(sample);
  WatchedRank& rank = ranks_[static_cast<size_t>(sample.rank)];
  const bool is_late = IsLate(rank);
  const WatchedRank::Moved moved = rank.Take(sample, now, every_);
  // Who waits for one that saves, or is stopped, does not tell how long a step may take.
  const bool waited = moved.was_in_collective || now - moved.stood <= stopped_at_ + kLookEvery ||
                      (is_held_up_ && !IsLong(moved.in));
  if (moved.stood > Duration{} && !waited) {
    Learn(moved.in, moved.stood, is_late, now);
  }
  if (!hang_.has_value() && IsNearLimit(rank, now)) {
    LookSoon(now + kLookSoon);
  }
}

/// It has done so many of its first steps that the next ones show how long a step takes.
bool ProgressWatch::IsLate(const WatchedRank& rank) const {
  const bool counts_steps = rank.tells() && rank.last().own->step >= 0;
  return counts_steps ? rank.steps_done() >= kLateSteps
                      : rank.collectives_done() * kWarmSteps >= kWarmCollectives * kLateSteps;
}

/// It has just reached what may be its limit: the next look need not be waited for.
bool ProgressWatch::IsNearLimit(const WatchedRank& rank, MonoTime now) const {
  const auto is_near = [&](Duration stood, Duration limit) {
    return stood >= limit && stood - limit < 3 * every_;
  };
  return is_near(rank.stopped(), limits_.StoppedLimit()) ||
         (rank.stood() >= limits_.StoppedLimit() &&
          is_near(rank.stood(),
                  limits_.LimitOf(SpanOf(rank.activity(), is_warm_), rank.IsBusy(), now)));
}

void ProgressWatch::Handle(const StepReported& report, MonoTime now, Findings*) {
  if (!is_running_ || report.step == reported_step_) {
    return;
  }
  if (reports_ > 0 && !(hang_.has_value() && hang_->kind == HangKind::kStopped)) {
    limits_.Learn(Span::kReports, unreported_, now);
  }
  ++reports_;
  reported_step_ = report.step;
  reported_at_ = now;
  unreported_ = Duration{};
  LookSoon(now + kLookEvery);
}

void ProgressWatch::LookSoon(MonoTime when) { wake_at_ = std::min(wake_at_, when); }

void ProgressWatch::Handle(const TimerDue&, MonoTime now, Findings* found) {
  if (now < wake_at_) {
    return;
  }
  wake_at_ = MonoTime::max();
  if (is_running_) {
    LookSoon(now + kLookEvery);
    Look(now, found);
  }
}

// --- Looking

Duration ProgressWatch::Silence() const {
  return std::max<Duration>(std::chrono::seconds(3), 3 * every_);
}

/// The ranks that are told of. Those of a node that tells nothing count as they were, for a while.
std::vector<int> ProgressWatch::Present(MonoTime now) const {
  std::vector<int> present;
  for (int rank = 0; rank < places_.world_size(); ++rank) {
    const WatchedRank& seen = ranks_[static_cast<size_t>(rank)];
    const MonoTime newest = heard_[places_.NodeIndexOf(rank)].at;
    const bool is_told_of = seen.is_seen() && newest - seen.seen_at() <= Silence();
    if (is_told_of && now - newest <= WaitForNode()) {
      present.push_back(rank);
    }
  }
  return present;
}

Duration ProgressWatch::WaitForNode() const {
  return std::max<Duration>(kWaitForNode, kWaitIntervals * every_);
}

/// Nobody waits for a node that has been silent for long, or that is silent again and again.
bool ProgressWatch::IsWaitedFor(const Heard& heard, MonoTime now) const {
  return now - heard.at <= WaitForNode() &&
         ToSeconds(heard.missed) <= kFlapShare * ToSeconds(FlapWindow());
}

bool ProgressWatch::IsIncomplete(MonoTime now) const {
  return std::any_of(heard_.begin(), heard_.end(), [&](const Heard& heard) {
    return heard.ever && now - heard.at > Silence() && IsWaitedFor(heard, now);
  });
}

Duration ProgressWatch::FlapWindow() const {
  return std::max<Duration>(kFlapWindow, 4 * WaitForNode());
}

/// How much of the last while each node was not heard of in time; what was longer ago fades.
void ProgressWatch::NoteSilence(Duration since, MonoTime now) {
  const double kept = std::exp(-ToSeconds(since) / ToSeconds(FlapWindow()));
  for (Heard& heard : heard_) {
    const bool is_missing = heard.ever && now - heard.at > Silence();
    heard.missed =
        Duration(static_cast<int64_t>(static_cast<double>(heard.missed.count()) * kept)) +
        (is_missing ? since : Duration{});
  }
}

void ProgressWatch::Look(MonoTime now, Findings* found) {
  const MonoTime before = std::exchange(looked_at_, now);
  const Duration since = now - before;
  const Duration seen = std::min<Duration>(since, 3 * kLookEvery);
  unreported_ += seen;
  NoteSilence(seen, now);
  const std::vector<int> present = Present(now);
  const Scene scene{
      ranks_, present, limits_,           is_warm_,
      every_, now,     IsIncomplete(now), reports_ > 0 ? unreported_ : Duration::max()};
  NoteWarmUp(scene);
  LearnFrom(scene);
  if (stopped_at_ == before) {  // And not any more: the others could not move either.
    std::for_each(ranks_.begin(), ranks_.end(), [](WatchedRank& rank) { rank.StandAnew(); });
  }
  if (options_.looks_for_hangs) {
    LookForHang(scene, found);
  }
  stragglers_.Judge(places_, now, &next_id_, found);
}

void ProgressWatch::NoteWarmUp(const Scene& scene) {
  if (is_warm_ || !tells_any_ || scene.is_incomplete) {
    return;
  }
  const bool is_warm = std::all_of(scene.present.begin(), scene.present.end(), [&](int rank) {
    const WatchedRank& seen = scene.At(rank);
    return !seen.tells() || seen.steps_done() >= kWarmSteps ||
           (seen.last().own->step < 0 && seen.collectives_done() >= kWarmCollectives);
  });
  if (is_warm) {
    is_warm_ = true;
    limits_.Learn(Span::kWarmUp, warm_longest_, scene.now);
  }
}

/// The first steps are learnt once they are done: a long one may follow a short one. `is_late`: it
/// was not one of the very first, so it also tells what is to be expected afterwards.
void ProgressWatch::Learn(Activity in, Duration stood, bool is_late, MonoTime now) {
  const Span span = SpanOf(in, is_warm_);
  if (span != Span::kWarmUp || is_warm_) {
    limits_.Learn(span, stood, now);
    return;
  }
  warm_longest_ = std::max(warm_longest_, stood);
  if (is_late && in != Activity::kStarting) {
    limits_.Learn(SpanOf(in, /*is_warm=*/true), stood, now);
  }
}

/// How long all ranks have stood together: a collective is learnt by that, since each rank by
/// itself waits for others.
void ProgressWatch::LearnFrom(const Scene& scene) {
  is_held_up_ = HoldsUp(scene).has_value();
  Duration stood = Duration::max();
  Duration idle = Duration::max();
  Activity in = Activity::kForward;
  bool is_late = true;
  bool is_stopped = hang_.has_value() && hang_->kind == HangKind::kStopped;
  for (const int rank : scene.present) {
    const WatchedRank& seen = scene.At(rank);
    stood = seen.tells() ? std::min(stood, seen.stood()) : stood;
    idle = std::min(idle, seen.idle());
    is_late = is_late && (!seen.tells() || IsLate(seen));
    is_stopped = is_stopped || seen.IsStopped();
    if (seen.activity() == Activity::kOther && !seen.IsInCollective()) {
      in = Activity::kOther;
    }
  }
  stood = stood == Duration::max() || is_held_up_ || is_stopped ? Duration{} : stood;
  idle = idle == Duration::max() || is_stopped ? Duration{} : idle;
  if (stood < all_stood_ && !is_held_up_ && !is_stopped) {
    Learn(all_stood_in_, all_stood_, all_stood_is_late_, scene.now);
  }
  if (idle < all_idle_ && !is_stopped) {
    limits_.Learn(Span::kIdle, all_idle_, scene.now);
  }
  all_stood_ = stood;
  all_stood_in_ = in;
  all_stood_is_late_ = is_late;
  stopped_at_ = is_stopped ? scene.now : stopped_at_;
  all_idle_ = idle;
}

}  // namespace fsdprun::watch
