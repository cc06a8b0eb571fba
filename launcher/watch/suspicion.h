#pragma once

// Who a world hangs because of.
//
// Note [Who is it]
// Workers of one job go through the same collectives in the same order. Where one does not come,
// all others stand in a collective that it has not entered: it is the one with the lowest step, and
// in that with the fewest collectives begun. That alone would accuse whoever is late for a good
// reason, so each rank has a limit for what it is doing, and nobody is accused while the one that
// is behind, or one that saves or waits for data, is within its own. What is certain comes first: a
// worker that is stopped; while one is, nobody else is judged. A worker that says nothing while the
// others wait for the first step is what they wait for. Where all have entered the same collective,
// it is nobody's program but what carries the collective. Ranks whose counts of collectives do not
// go together, such as those of different pipeline stages, are compared by their steps alone, and
// then by who is in no collective at all. That they have gone different ways through the program is
// said only where nothing else explains it: two threads carry the collectives of a rank, so which
// is its oldest one may differ from rank to rank.

#include <optional>
#include <vector>

#include "launcher/watch/findings.h"
#include "launcher/watch/limits.h"
#include "launcher/watch/watched_rank.h"

namespace fsdprun::watch {

/// What is known of a world at one moment.
struct Scene {
  /// By rank.
  const std::vector<WatchedRank>& ranks;
  /// The ranks that samples come of, in order.
  const std::vector<int>& present;
  const Limits& limits;
  bool is_warm = false;
  Duration every = std::chrono::seconds(1);
  MonoTime now{};
  /// Samples of a node are missing, but not for long: what is seen of the others proves nothing.
  bool is_incomplete = false;
  /// For how long rank 0 has told no further step; Duration::max(): it never did.
  Duration unreported = Duration::max();

  const WatchedRank& At(int rank) const { return ranks[static_cast<size_t>(rank)]; }
  /// It has not moved for at least two samples.
  bool Stands(int rank) const { return At(rank).stood() >= 2 * every; }
  Duration LimitOf(int rank) const;
  bool IsOver(int rank) const { return At(rank).stood() >= LimitOf(rank); }
};

struct Suspicion {
  HangKind kind = HangKind::kBehind;
  /// In order; empty: nobody in particular.
  std::vector<int> culprits;
  Duration lasted{};
  Duration limit{};
};

/// Pure. O(ranks).
std::optional<Suspicion> Suspect(const Scene& scene);

/// A rank holds up the others with what may take long, and may do so; nullopt: none does.
std::optional<int> HoldsUp(const Scene& scene);

/// Those of the ranks that wait in a collective, without `culprits`.
std::vector<int> WaitingRanks(const Scene& scene, const std::vector<int>& culprits);

}  // namespace fsdprun::watch
