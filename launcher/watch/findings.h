#pragma once

// What the watch finds. Values only; docs/WATCH.md tells users what they mean.

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mono_time.h"

namespace fsdprun::watch {

/// Which worker it is.
struct RankPlace {
  int rank = 0;
  std::string node;
  int64_t pid = 0;

  bool operator==(const RankPlace&) const = default;
};

enum class HangKind {
  kStopped,     // workers are stopped by a signal or a debugger, or are dead and not collected
  kBehind,      // workers do not move, and others may wait for them
  kCollective,  // all have entered a collective, and it does not end
  kDisagree,    // they wait in different collectives
  kAsleep,      // workers that say nothing of themselves are in uninterruptible sleep
  kIdle,        // none of the workers uses the CPU
  kNoProgress,  // no more steps are reported
};
/// As in events.jsonl.
std::string_view NameOf(HangKind kind);

/// A world does not get on.
struct HangFound {
  /// Of all findings of this coordinator, from 1.
  uint64_t id = 0;
  HangKind kind = HangKind::kBehind;
  /// Who it is because of, in order of rank, the first kPlacesMax; empty: nobody in particular.
  std::vector<RankPlace> culprits;
  int culprit_count = 0;
  /// One of those who wait for them; -1: nobody does.
  int witness = -1;
  /// For how long it was seen when it was found, and after which time that is a hang.
  Duration lasted{};
  Duration limit{};
  /// For how long it has to be seen before something is done about it, where that is wanted;
  /// Duration::max(): nothing is, however long it lasts.
  Duration act_after = Duration::max();
  /// One sentence without its full stop, for whoever is on call.
  std::string what;
  /// What is done about it: report, restart or abort. Filled in by who does it.
  std::string action;
};

/// What a rank was doing then.
struct RankStacks {
  RankPlace place;
  std::string text;
  /// Why they could not be read, or not as well as they might; empty: they were.
  std::string problem;
};
/// The stacks of a hang have been read, or could not be, and are in a file beside the events.
struct HangReported {
  uint64_t id = 0;
  std::string file;
  std::vector<RankStacks> stacks;
};

/// It gets on, or its world has ended.
struct HangEnded {
  uint64_t id = 0;
  /// Since it was found.
  Duration after{};
  std::string what;
};

/// In what a slow rank loses its time.
enum class SlowIn { kComputing, kWaitingForData, kSaving };
std::string_view NameOf(SlowIn in);

/// Ranks of one node take longer for a step than the others, and hold them up.
struct SlowFound {
  uint64_t id = 0;
  /// In order, the first kPlacesMax.
  std::vector<RankPlace> ranks;
  int rank_count = 0;
  SlowIn in = SlowIn::kComputing;
  /// Of their own time for a step, by how much it is longer: 0.17.
  double excess = 0;
  Duration step_time{};
  Duration others_step_time{};
  std::string what;
};

struct SlowEnded {
  uint64_t id = 0;
  std::string what;
};

inline constexpr size_t kPlacesMax = 16;

/// HangReported is not the watch's: it comes after HangFound, from who asks for stacks.
using Finding = std::variant<HangFound, HangEnded, SlowFound, SlowEnded, HangReported>;
using Findings = std::vector<Finding>;

}  // namespace fsdprun::watch
