#include "launcher/watch/suspicion.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

namespace fsdprun::watch {
namespace {

/// As many collectives as a rank may have begun ahead of the others, at least.
constexpr uint64_t kAheadMin = 64;

std::vector<int> Where(const Scene& scene, const std::function<bool(int)>& holds) {
  std::vector<int> found;
  std::copy_if(scene.present.begin(), scene.present.end(), std::back_inserter(found), holds);
  return found;
}

/// For how long all of them have stood, and the longest of their limits.
Suspicion Standing(const Scene& scene, HangKind kind, std::vector<int> culprits,
                   const std::vector<int>& standing) {
  Suspicion found{kind, std::move(culprits), Duration::max(), {}};
  for (const int rank : standing) {
    found.lasted = std::min(found.lasted, scene.At(rank).stood());
    found.limit = std::max(found.limit, scene.LimitOf(rank));
  }
  return found;
}

/// Once one is over its limit, all that were stopped with it: of some, a sample may have been lost.
std::optional<Suspicion> Stopped(const Scene& scene) {
  const auto limit_of = [&](int rank) {
    return scene.At(rank).last().state == 't' ? scene.limits.TracedLimit()
                                              : scene.limits.StoppedLimit();
  };
  const Duration late = 3 * scene.every;
  Suspicion found{HangKind::kStopped, {}, Duration::max(), {}};
  bool is_one_over = false;
  for (const int rank : scene.present) {
    const Duration stopped = scene.At(rank).stopped();
    if (stopped > Duration{} && stopped >= limit_of(rank) - late) {
      is_one_over = is_one_over || stopped >= limit_of(rank);
      found.culprits.push_back(rank);
      found.lasted = std::min(found.lasted, stopped);
      found.limit = std::max(found.limit, limit_of(rank));
    }
  }
  return is_one_over ? std::optional(found) : std::nullopt;
}

/// Their counts of collectives are of the same sequence: they never differ by more than what one
/// may begin ahead of the others.
bool AreComparable(const Scene& scene, const std::vector<int>& tell) {
  uint64_t lowest = UINT64_MAX;
  uint64_t highest = 0;
  uint64_t per_step = 0;
  for (const int rank : tell) {
    const WatchedRank& seen = scene.At(rank);
    lowest = std::min(lowest, seen.last().own->begun);
    highest = std::max(highest, seen.last().own->begun);
    if (seen.steps_done() > 0) {
      per_step =
          std::max(per_step, seen.collectives_done() / static_cast<uint64_t>(seen.steps_done()));
    }
  }
  return highest - lowest <= std::max(kAheadMin, 2 * per_step);
}

/// Those who are behind the others; empty if nobody is, or it cannot be told.
std::vector<int> Behind(const Scene& scene, const std::vector<int>& tell) {
  const bool counts = AreComparable(scene, tell);
  const auto place = [&](int rank) {
    const OwnSample& own = *scene.At(rank).last().own;
    return std::pair(own.step, counts ? own.begun : 0);
  };
  std::vector<int> behind;
  for (const int rank : tell) {
    if (!behind.empty() && place(rank) > place(behind.front())) {
      continue;
    }
    if (!behind.empty() && place(rank) < place(behind.front())) {
      behind.clear();
    }
    behind.push_back(rank);
  }
  return behind.size() == tell.size() ? std::vector<int>() : behind;
}

/// Collectives of different lanes end in any order.
enum class LaneKind { kGather, kBarrier, kReduce };

/// Of "all_gather of ranks 0-3": what is in order, and for whom.
std::pair<LaneKind, std::string> LaneOf(const std::string& collective) {
  const size_t end = std::min(collective.find(' '), collective.size());
  const std::string kind = collective.substr(0, end);
  const LaneKind lane = kind == "all_gather" ? LaneKind::kGather
                        : kind == "barrier"  ? LaneKind::kBarrier
                                             : LaneKind::kReduce;
  return {lane, collective.substr(end)};
}

/// They have begun and ended as many of one group, and wait in one lane of it.
bool AreInStep(const Scene& scene, const std::vector<int>& tell) {
  const OwnSample& first = *scene.At(tell.front()).last().own;
  return std::all_of(tell.begin(), tell.end(), [&](int rank) {
    const OwnSample& own = *scene.At(rank).last().own;
    return own.begun == first.begun && own.ended == first.ended &&
           LaneOf(own.collective) == LaneOf(first.collective);
  });
}

/// The fewest who wait in another collective than the others; empty if all wait in the same, or the
/// order of threads may be all that differs.
std::vector<int> InAnother(const Scene& scene, const std::vector<int>& tell) {
  if (!AreInStep(scene, tell)) {
    return {};
  }
  std::map<std::pair<std::string, std::string>, std::vector<int>> by_text;
  for (const int rank : tell) {
    const OwnSample& own = *scene.At(rank).last().own;
    by_text[{own.collective, own.unit}].push_back(rank);
  }
  const auto fewest = std::min_element(
      by_text.begin(), by_text.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  return by_text.size() == 1 ? std::vector<int>() : fewest->second;
}

std::optional<Suspicion> InCollective(const Scene& scene, const std::vector<int>& tell) {
  const bool all = std::all_of(tell.begin(), tell.end(), [&](int rank) {
    return scene.At(rank).IsInCollective() && scene.IsOver(rank);
  });
  if (!all) {
    return std::nullopt;
  }
  std::vector<int> others = InAnother(scene, tell);
  const HangKind kind = others.empty() ? HangKind::kCollective : HangKind::kDisagree;
  return Standing(scene, kind, std::move(others), tell);
}

/// Those that say nothing while the others have not done a step: they import, or connect.
std::vector<int> NotThereYet(const Scene& scene, const std::vector<int>& tell) {
  const bool has_begun = std::any_of(tell.begin(), tell.end(),
                                     [&](int rank) { return scene.At(rank).steps_done() > 0; });
  return scene.is_warm || has_begun
             ? std::vector<int>()
             : Where(scene, [&](int rank) { return !scene.At(rank).tells(); });
}

std::optional<Suspicion> Silent(const Scene& scene, std::vector<int> silent) {
  Suspicion found{HangKind::kBehind, std::move(silent), Duration::max(),
                  scene.limits.StartLimit(scene.now)};
  for (const int rank : found.culprits) {
    found.lasted = std::min(found.lasted, scene.At(rank).silent());
  }
  return found.lasted < found.limit ? std::nullopt : std::optional(found);
}

std::optional<Suspicion> NotMoving(const Scene& scene) {
  const std::vector<int> tell = Where(scene, [&](int rank) { return scene.At(rank).tells(); });
  const auto is_over = [&](int rank) { return scene.IsOver(rank); };
  const bool is_one_stopped = std::any_of(scene.present.begin(), scene.present.end(),
                                          [&](int rank) { return scene.At(rank).IsStopped(); });
  if (std::none_of(tell.begin(), tell.end(), is_over) || HoldsUp(scene).has_value() ||
      is_one_stopped) {
    return std::nullopt;
  }
  if (std::vector<int> silent = NotThereYet(scene, tell); !silent.empty()) {
    return Silent(scene, std::move(silent));
  }
  std::vector<int> behind = Behind(scene, tell);
  if (!behind.empty()) {
    if (std::all_of(behind.begin(), behind.end(), is_over)) {
      return Standing(scene, HangKind::kBehind, behind, behind);
    }
    if (std::any_of(behind.begin(), behind.end(), [&](int rank) { return scene.Stands(rank); })) {
      return std::nullopt;
    }
  }
  const bool has_others = scene.ranks.size() > 1;
  std::vector<int> alone = Where(scene, [&](int rank) {
    const WatchedRank& seen = scene.At(rank);
    return seen.tells() && !(has_others && seen.IsInCollective()) && is_over(rank);
  });
  if (!alone.empty()) {
    return Standing(scene, HangKind::kBehind, alone, alone);
  }
  return InCollective(scene, tell);
}

std::optional<Suspicion> Asleep(const Scene& scene) {
  const Duration limit = scene.limits.AsleepLimit();
  Suspicion found{HangKind::kAsleep, {}, Duration::max(), limit};
  for (const int rank : scene.present) {
    if (!scene.At(rank).tells() && scene.At(rank).asleep() >= limit) {
      found.culprits.push_back(rank);
      found.lasted = std::min(found.lasted, scene.At(rank).asleep());
    }
  }
  return found.culprits.empty() ? std::nullopt : std::optional(found);
}

std::optional<Suspicion> Idle(const Scene& scene) {
  Suspicion found{HangKind::kIdle,
                  {},
                  scene.unreported,
                  scene.limits.LimitOf(Span::kIdle, /*is_busy=*/false, scene.now)};
  for (const int rank : scene.present) {
    found.lasted = std::min(found.lasted, scene.At(rank).idle());
    if (scene.At(rank).tells() || found.lasted < found.limit) {
      return std::nullopt;
    }
  }
  return scene.present.empty() ? std::nullopt : std::optional(found);
}

}  // namespace

Duration Scene::LimitOf(int rank) const {
  const WatchedRank& seen = At(rank);
  if (seen.activity() == Activity::kStarting) {
    return limits.StartLimit(now);
  }
  // Also in a collective: one that was begun ahead is under way while the rank computes.
  return limits.LimitOf(SpanOf(seen.activity(), is_warm), seen.IsBusy(), now);
}

std::optional<Suspicion> Suspect(const Scene& scene) {
  if (std::optional<Suspicion> found = Stopped(scene)) {
    return found;
  }
  if (scene.is_incomplete) {
    return std::nullopt;
  }
  if (std::optional<Suspicion> found = NotMoving(scene)) {
    return found;
  }
  if (std::optional<Suspicion> found = Asleep(scene)) {
    return found;
  }
  return Idle(scene);
}

std::optional<int> HoldsUp(const Scene& scene) {
  const auto it = std::find_if(scene.present.begin(), scene.present.end(), [&](int rank) {
    const WatchedRank& seen = scene.At(rank);
    return seen.tells() && IsLong(seen.activity()) && scene.Stands(rank) && !scene.IsOver(rank);
  });
  return it == scene.present.end() ? std::nullopt : std::optional(*it);
}

std::vector<int> WaitingRanks(const Scene& scene, const std::vector<int>& culprits) {
  return Where(scene, [&](int rank) {
    return scene.At(rank).IsInCollective() && scene.Stands(rank) &&
           !std::binary_search(culprits.begin(), culprits.end(), rank);
  });
}

}  // namespace fsdprun::watch
