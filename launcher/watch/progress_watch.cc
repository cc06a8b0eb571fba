#include "launcher/watch/progress_watch.h"

#include <algorithm>
#include <utility>

namespace fsdprun::watch {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(1);
/// After a sample that may decide: those of the other nodes come with it.
constexpr Duration kLookSoon = std::chrono::milliseconds(100);
/// How long a node may tell nothing before the others are judged without it.
constexpr Duration kWaitForNode = std::chrono::seconds(30);
/// Of a program that counts no steps, those are its first ones.
constexpr uint64_t kWarmCollectives = 100;
/// So many steps have to be reported before it is known how long one takes.
constexpr int kReportsToLearn = 5;

}  // namespace

std::string_view NameOf(HangKind kind) {
  switch (kind) {
    case HangKind::kStopped:
      return "stopped";
    case HangKind::kBehind:
      return "behind";
    case HangKind::kCollective:
      return "collective";
    case HangKind::kDisagree:
      return "disagree";
    case HangKind::kAsleep:
      return "asleep";
    case HangKind::kIdle:
      return "idle";
    case HangKind::kNoProgress:
      return "no_progress";
  }
  return "?";
}

std::string_view NameOf(SlowIn in) {
  switch (in) {
    case SlowIn::kComputing:
      return "computing";
    case SlowIn::kWaitingForData:
      return "waiting_for_data";
    case SlowIn::kSaving:
      return "saving";
  }
  return "?";
}

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
  heard_[places_.NodeIndexOf(sample.rank)] = {true, now};
  tells_any_ = tells_any_ || sample.own.has_value();
  stragglers_.Take(sample);
  WatchedRank& rank = ranks_[static_cast<size_t>(sample.rank)];
  const WatchedRank::Moved moved = rank.Take(sample, now, every_);
  if (moved.stood > Duration{} && !moved.was_stopped && !moved.was_in_collective) {
    // Who waits for one that saves does not tell how long a step may take.
    const Span span = SpanOf(moved.in, is_warm_);
    if (!is_held_up_ || IsLong(moved.in)) {
      Learn(span, moved.stood, now);
    }
  }
  if (!hang_.has_value() && std::max(rank.stood(), rank.stopped()) >= limits_.StoppedLimit()) {
    LookSoon(now + kLookSoon);
  }
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
    if (is_told_of && now - newest <= kWaitForNode) {
      present.push_back(rank);
    }
  }
  return present;
}

bool ProgressWatch::IsIncomplete(MonoTime now) const {
  return std::any_of(heard_.begin(), heard_.end(), [&](const Heard& heard) {
    return heard.ever && now - heard.at > Silence() && now - heard.at <= kWaitForNode;
  });
}

void ProgressWatch::Look(MonoTime now, Findings* found) {
  const Duration since = now - std::exchange(looked_at_, now);
  unreported_ += std::min<Duration>(since, 3 * kLookEvery);
  const std::vector<int> present = Present(now);
  const Scene scene{ranks_, present, limits_, is_warm_, every_, now, IsIncomplete(now)};
  NoteWarmUp(scene);
  LearnFrom(scene);
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

/// The first steps are learnt once they are done: a long one may follow a short one.
void ProgressWatch::Learn(Span span, Duration stood, MonoTime now) {
  if (span == Span::kWarmUp && !is_warm_) {
    warm_longest_ = std::max(warm_longest_, stood);
  } else {
    limits_.Learn(span, stood, now);
  }
}

/// How long all ranks have stood together: a collective is learnt by that, since each rank by
/// itself waits for others.
void ProgressWatch::LearnFrom(const Scene& scene) {
  is_held_up_ = HoldsUp(scene).has_value();
  Duration stood = Duration::max();
  Duration idle = Duration::max();
  Span span = SpanOf(Activity::kForward, is_warm_);
  bool is_stopped = hang_.has_value() && hang_->kind == HangKind::kStopped;
  for (const int rank : scene.present) {
    const WatchedRank& seen = scene.At(rank);
    stood = seen.tells() ? std::min(stood, seen.stood()) : stood;
    idle = std::min(idle, seen.idle());
    is_stopped = is_stopped || seen.stopped() > Duration{};
    if (seen.activity() == Activity::kOther && !seen.IsInCollective()) {
      span = SpanOf(Activity::kOther, is_warm_);
    }
  }
  stood = stood == Duration::max() || is_held_up_ || is_stopped ? Duration{} : stood;
  idle = idle == Duration::max() || is_stopped ? Duration{} : idle;
  if (stood < all_stood_ && !is_held_up_ && !is_stopped) {
    Learn(all_stood_in_, all_stood_, scene.now);
  }
  if (idle < all_idle_ && !is_stopped) {
    limits_.Learn(Span::kIdle, all_idle_, scene.now);
  }
  all_stood_ = stood;
  all_stood_in_ = span;
  all_idle_ = idle;
}

// --- Hangs

void ProgressWatch::LookForHang(const Scene& scene, Findings* found) {
  if (hang_.has_value()) {
    if (IsOver(scene)) {
      EndHang("it goes on", scene.now, found);
    }
    return;
  }
  std::optional<Suspicion> suspicion = Suspect(scene);
  if (!suspicion.has_value() && !scene.is_incomplete) {
    suspicion = NoMoreReports(scene.now);
  }
  if (IsConfirmed(suspicion, scene.now)) {
    hang_ = Found(scene, *suspicion);
    hang_found_at_ = scene.now;
    found->emplace_back(*hang_);
  }
}

/// What a sample that was lost would have shown may be all that is wrong: except for what is plain
/// by itself, every node has to tell once more. One that stays silent is not waited for.
bool ProgressWatch::IsConfirmed(const std::optional<Suspicion>& suspicion, MonoTime now) {
  if (!suspicion.has_value()) {
    suspected_at_ = MonoTime::max();
    return false;
  }
  suspected_at_ = std::min(suspected_at_, now);
  const bool is_plain =
      suspicion->kind == HangKind::kStopped || suspicion->kind == HangKind::kNoProgress;
  return is_plain || std::all_of(heard_.begin(), heard_.end(), [&](const Heard& heard) {
           return heard.at > suspected_at_ || now - heard.at > kWaitForNode;
         });
}

/// Where workers tell nothing of themselves, rank 0 may still report its steps. Workers that
/// compute may be doing what has no steps: they have longer.
std::optional<Suspicion> ProgressWatch::NoMoreReports(MonoTime now) const {
  if (tells_any_ || reports_ < kReportsToLearn) {
    return std::nullopt;
  }
  Duration limit = limits_.LimitOf(Span::kReports, /*is_busy=*/false, now);
  if (!options_.limits.fixed.has_value() && all_idle_ < limit / 2) {
    limit = std::max<Duration>(limit, std::chrono::minutes(10));
  }
  return unreported_ < limit
             ? std::nullopt
             : std::optional(Suspicion{HangKind::kNoProgress, {}, unreported_, limit});
}

HangFound ProgressWatch::Found(const Scene& scene, const Suspicion& suspicion) {
  HangFound hang;
  hang.id = next_id_++;
  hang.kind = suspicion.kind;
  hang.culprit_count = static_cast<int>(suspicion.culprits.size());
  for (const int rank : suspicion.culprits) {
    if (hang.culprits.size() < kPlacesMax) {
      hang.culprits.push_back({rank, places_.NodeOf(rank), scene.At(rank).last().pid});
    }
  }
  const std::vector<int> waiting = WaitingRanks(scene, suspicion.culprits);
  hang.witness = waiting.empty() ? -1 : waiting.front();
  hang.lasted = suspicion.lasted;
  hang.limit = suspicion.limit;
  hang.what = DescribeHang(scene, suspicion, places_);
  if (hang.kind == HangKind::kNoProgress) {
    hang.what += ", after step " + std::to_string(reported_step_) +
                 "; until then it took at most " +
                 TextOf(limits_.Longest(Span::kReports, scene.now));
  }
  return hang;
}

Duration ProgressWatch::SeenOf(const WatchedRank& rank, HangKind kind) const {
  switch (kind) {
    case HangKind::kStopped:
      return rank.stopped();
    case HangKind::kBehind:
    case HangKind::kCollective:
    case HangKind::kDisagree:
      return rank.stood();
    case HangKind::kAsleep:
      return rank.asleep();
    case HangKind::kIdle:
      return rank.idle();
    case HangKind::kNoProgress:
      return unreported_;
  }
  return {};
}

/// One of those it was because of has moved, or is not there any more.
bool ProgressWatch::IsOver(const Scene& scene) const {
  if (hang_->kind == HangKind::kNoProgress) {
    return unreported_ < hang_->lasted;
  }
  if (hang_->culprits.empty()) {
    return std::any_of(scene.present.begin(), scene.present.end(), [&](int rank) {
      return SeenOf(scene.At(rank), hang_->kind) < hang_->lasted;
    });
  }
  return std::any_of(hang_->culprits.begin(), hang_->culprits.end(), [&](const RankPlace& place) {
    const bool is_there =
        std::binary_search(scene.present.begin(), scene.present.end(), place.rank);
    return !is_there || SeenOf(scene.At(place.rank), hang_->kind) < hang_->lasted;
  });
}

void ProgressWatch::EndHang(const std::string& what, MonoTime now, Findings* found) {
  if (hang_.has_value()) {
    found->emplace_back(HangEnded{hang_->id, now - hang_found_at_, what});
    hang_.reset();
  }
}

}  // namespace fsdprun::watch
