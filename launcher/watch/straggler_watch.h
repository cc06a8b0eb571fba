#pragma once

// Which ranks hold up the others by being slow.
//
// Note [Who is slow]
// In a job whose ranks wait for each other each step takes as long everywhere. So each rank's own
// time is compared: that of a step without what it has waited in collectives. Rounds of about ten
// seconds give each rank a mean of the steps that samples have shown, without the longest one; the
// others are their lower median, which is the faster one of two. A rank is slow if it was so by the
// ratio in kVotes of its last kRounds rounds, and if, taken together, the difference is kSurety
// times what the spread of the steps explains: neither one slow step, such as a checkpoint of rank
// 0, nor noise on thousands of ranks accuses anybody. It is slow no longer when at most one of its
// last rounds was by three quarters of the ratio. Where no rank has waited in a collective at all
// (with NCCL the device waits, and the host does not), nobody is said to compute slowly: the own
// time is then that of the step, which is everybody's.

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/mono_time.h"
#include "launcher/watch/findings.h"
#include "launcher/watch/hang_text.h"
#include "launcher/watch/sample.h"

namespace fsdprun::watch {

class StragglerWatch {
 public:
  static constexpr Duration kRound = std::chrono::seconds(10);
  /// A round of long steps ends when most ranks have shown so many, or after kLongRound.
  static constexpr int kStepsOfRound = 3;
  static constexpr Duration kLongRound = std::chrono::seconds(60);
  static constexpr size_t kRounds = 5;
  static constexpr int kVotes = 4;
  static constexpr double kSurety = 5;
  static constexpr double kEndRatio = 0.75;
  /// What clocks and schedulers do to any step.
  static constexpr Duration kLeast = std::chrono::milliseconds(2);

  /// `ratio`: from which excess on a rank is slow; 0: none ever is.
  explicit StragglerWatch(double ratio) : ratio_(ratio) {}

  void Begin(int world_size, MonoTime now);
  /// One that shows no other step than the rank's last one counts for nothing.
  void Take(const Sample& sample);
  /// To be called about once a second. `next_id`: of findings.
  void Judge(const Places& places, MonoTime now, uint64_t* next_id, Findings* found);
  /// The world has ended.
  void End(Findings* found);

  /// Those that are slow.
  const std::map<uint64_t, SlowFound>& slow() const { return open_; }

 private:
  /// Means of one round, in seconds, and the variance of a rank's own time.
  struct Round {
    int steps = 0;
    double own = 0;
    double compute = 0;
    double data = 0;
    double save = 0;
    double variance = 0;
    /// In all.
    double waited = 0;
  };
  struct Rank {
    int64_t pid = 0;
    int64_t step = -1;
    /// Of the round that runs: sums.
    Round sum;
    double squares = 0;
    Round longest;
    /// The last ones that had steps, the latest first, and by how much it was slower in them.
    std::array<Round, kRounds> rounds;
    std::array<double, kRounds> excess{};
    size_t round_count = 0;
    /// What it is part of; 0: it is not slow.
    uint64_t finding = 0;
  };
  struct Means {
    double own = 0;
    double compute = 0;
    double data = 0;
    double save = 0;
    /// Of the mean of all rounds of a rank.
    double squared_error = 0;
  };

  bool IsRoundOver(MonoTime now) const;
  static Round EndRound(Rank* rank);
  Means MeansOf(const std::vector<Round>& rounds) const;
  static Round Together(const Rank& rank);
  /// Some rank has waited for others.
  static bool AreWaitsKnown(const std::vector<Round>& rounds);
  bool IsSlow(const Rank& rank, const Round& all, const Means& others) const;
  bool IsSlowNoMore(const Rank& rank) const;
  void TellSlow(const std::vector<int>& slow, const Means& others, const Places& places,
                uint64_t* next_id, Findings* found);
  SlowFound Describe(const std::vector<int>& ranks, SlowIn in, const Means& others,
                     const Places& places) const;
  static SlowIn LosesTimeIn(const Round& all, const Means& others);
  void Acquit(Rank* rank, const char* why, Findings* found);

  double ratio_;
  std::vector<Rank> ranks_;
  MonoTime round_began_{};
  std::map<uint64_t, SlowFound> open_;
  /// How many of a finding's ranks are still slow.
  std::map<uint64_t, int> still_slow_;
};

}  // namespace fsdprun::watch
