// What is a hang, how long it lasts, and when it is over.
#include <algorithm>
#include <utility>

#include "launcher/watch/progress_watch.h"

namespace fsdprun::watch {
namespace {

/// So many steps have to be reported before it is known how long one takes.
constexpr int kReportsToLearn = 5;
/// What has just been told and was over is not told again before.
constexpr Duration kSameAgain = std::chrono::seconds(30);

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

void ProgressWatch::LookForHang(const Scene& scene, Findings* found) {
  if (hang_.has_value()) {
    if (const std::string why = WhyOver(scene); !why.empty()) {
      EndHang(why, scene.now, found);
    } else {
      hang_lasted_ = LastedNow(scene).value_or(hang_lasted_);
    }
    return;
  }
  std::optional<Suspicion> suspicion = Suspect(scene);
  if (!suspicion.has_value() && !scene.is_incomplete) {
    suspicion = NoMoreReports(scene.now);
  }
  if (IsConfirmed(scene, suspicion) && !IsSameAgain(*suspicion, scene.now)) {
    hang_ = Found(scene, *suspicion);
    hang_lasted_ = hang_->lasted;
    hang_found_at_ = scene.now;
    found->emplace_back(*hang_);
  }
}

/// What a sample that was lost would have shown may be all that is wrong: except for what is plain
/// by itself, every node has to tell once more. One that stays silent is not waited for.
bool ProgressWatch::IsConfirmed(const Scene& scene, const std::optional<Suspicion>& suspicion) {
  if (!suspicion.has_value()) {
    // A look that proves nothing acquits nobody either.
    suspected_at_ = scene.is_incomplete ? suspected_at_ : MonoTime::max();
    return false;
  }
  suspected_at_ = std::min(suspected_at_, scene.now);
  const bool is_plain =
      suspicion->kind == HangKind::kStopped || suspicion->kind == HangKind::kNoProgress;
  return is_plain || std::all_of(heard_.begin(), heard_.end(), [&](const Heard& heard) {
           return heard.at > suspected_at_ || !IsWaitedFor(heard, scene.now);
         });
}

bool ProgressWatch::IsSameAgain(const Suspicion& suspicion, MonoTime now) const {
  return last_hang_.has_value() && now - last_ended_at_ < kSameAgain &&
         last_hang_->kind == suspicion.kind &&
         std::equal(
             last_hang_->culprits.begin(), last_hang_->culprits.end(), suspicion.culprits.begin(),
             suspicion.culprits.begin() +
                 static_cast<std::ptrdiff_t>(std::min(kPlacesMax, suspicion.culprits.size())),
             [](const RankPlace& place, int rank) { return place.rank == rank; });
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
  hang.act_after = ActAfter(scene, suspicion);
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
      return rank.tells() ? rank.stood() : rank.silent();
    case HangKind::kAsleep:
      return rank.asleep();
    case HangKind::kIdle:
      return rank.idle();
    case HangKind::kNoProgress:
      return unreported_;
  }
  return {};
}

/// Min of those it is judged by; nullopt: none of them is there.
std::optional<Duration> ProgressWatch::LastedNow(const Scene& scene) const {
  if (hang_->kind == HangKind::kNoProgress) {
    return unreported_;
  }
  Duration lasted = hang_->kind == HangKind::kIdle ? scene.unreported : Duration::max();
  const auto take = [&](int rank) {
    lasted = std::min(lasted, SeenOf(scene.At(rank), hang_->kind));
  };
  const bool by_own_word = hang_->kind == HangKind::kCollective;
  for (const int rank : scene.present) {
    if (hang_->culprits.empty() && (!by_own_word || scene.At(rank).tells())) {
      take(rank);
    }
  }
  for (const RankPlace& place : hang_->culprits) {
    take(place.rank);
  }
  return lasted == Duration::max() ? std::nullopt : std::optional(lasted);
}

/// Empty: it is not over.
std::string ProgressWatch::WhyOver(const Scene& scene) const {
  for (const RankPlace& place : hang_->culprits) {
    if (!std::binary_search(scene.present.begin(), scene.present.end(), place.rank)) {
      return "nothing is heard of rank " + std::to_string(place.rank) + " any more";
    }
  }
  return LastedNow(scene).value_or(hang_->lasted) < hang_->lasted ? "it goes on" : "";
}

void ProgressWatch::EndHang(const std::string& what, MonoTime now, Findings* found) {
  if (!hang_.has_value()) {
    return;
  }
  found->emplace_back(HangEnded{hang_->id, now - hang_found_at_, what});
  last_hang_ = std::exchange(hang_, std::nullopt);
  last_ended_at_ = now;
}

// --- What is done about it

Duration ProgressWatch::ActAfter(const Scene& scene, const Suspicion& suspicion) const {
  // Of a program that says nothing of itself, the first long pause may be its evaluation.
  const bool is_guess =
      (suspicion.kind == HangKind::kIdle && !limits_.IsKnown(Span::kIdle, scene.now)) ||
      (suspicion.kind == HangKind::kNoProgress && !limits_.IsKnown(Span::kReports, scene.now));
  return is_guess ? Duration::max() : limits_.ActAfter(suspicion.limit);
}

/// What has stood too long; nullopt: it has nothing to do with how long anything takes.
std::optional<Span> ProgressWatch::SpanOfHang() const {
  switch (hang_->kind) {
    case HangKind::kStopped:
    case HangKind::kAsleep:
      return std::nullopt;
    case HangKind::kBehind: {
      const WatchedRank& first = ranks_[static_cast<size_t>(hang_->culprits.front().rank)];
      return first.tells() ? SpanOf(first.activity(), is_warm_) : Span::kWarmUp;
    }
    case HangKind::kCollective:
    case HangKind::kDisagree:
      return SpanOf(Activity::kForward, is_warm_);
    case HangKind::kIdle:
      return Span::kIdle;
    case HangKind::kNoProgress:
      return Span::kReports;
  }
  return std::nullopt;
}

/// It may have been about to go on: then the next world is not to be stopped for the same.
void ProgressWatch::Handle(const ActedOnHang&, MonoTime now, Findings*) {
  if (!hang_.has_value()) {
    return;
  }
  if (const std::optional<Span> span = SpanOfHang()) {
    limits_.Learn(*span, hang_lasted_, now);
  }
}

}  // namespace fsdprun::watch
