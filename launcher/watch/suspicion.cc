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

std::optional<Suspicion> Stopped(const Scene& scene) {
  const Duration limit = scene.limits.StoppedLimit();
  Suspicion found{HangKind::kStopped, {}, Duration::max(), limit};
  for (const int rank : scene.present) {
    if (scene.At(rank).stopped() >= limit) {
      found.culprits.push_back(rank);
      found.lasted = std::min(found.lasted, scene.At(rank).stopped());
    }
  }
  return found.culprits.empty() ? std::nullopt : std::optional(found);
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

/// The fewest who wait in another collective than the others; empty if all wait in the same.
std::vector<int> InAnother(const Scene& scene, const std::vector<int>& tell) {
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

std::optional<Suspicion> NotMoving(const Scene& scene) {
  const std::vector<int> tell = Where(scene, [&](int rank) { return scene.At(rank).tells(); });
  const auto is_over = [&](int rank) { return scene.IsOver(rank); };
  if (std::none_of(tell.begin(), tell.end(), is_over) || HoldsUp(scene).has_value()) {
    return std::nullopt;
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
                  Duration::max(),
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
  // Who waits in a collective may spin: only what computes by itself has more time.
  return limits.LimitOf(SpanOf(seen.activity(), is_warm), seen.IsBusy() && !seen.IsInCollective(),
                        now);
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
