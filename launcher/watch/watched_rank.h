#pragma once

// One rank, as its samples have shown it.
//
// Note [Time that was seen]
// Nothing that may be late counts as standing still. How long a rank has stood is added up from
// sample to sample, and of the time between two of them at most kGapsSeen sampling intervals count:
// a coordinator or a machine that was paused, a suspended laptop, a burst of samples that were held
// up, a stream that broke, add next to nothing. What a worker says about its own age is not used:
// it grows while everything is paused.

#include <cstdint>

#include "base/mono_time.h"
#include "launcher/watch/sample.h"

namespace fsdprun::watch {

/// In sampling intervals: how much of the time between two samples counts.
inline constexpr double kGapsSeen = 2.5;

class WatchedRank {
 public:
  /// What has ended with a sample, if the rank has moved.
  struct Moved {
    bool has_moved = false;
    /// For how long it had stood, doing what.
    Duration stood{};
    Activity in = Activity::kOther;
    bool was_in_collective = false;
  };

  Moved Take(Sample sample, MonoTime now, Duration every);

  /// What it has stood until now had another reason: it counts from now on.
  void StandAnew() { stood_ = real_stood_ = cpu_stood_ = Duration{}; }

  bool is_seen() const { return is_seen_; }
  const Sample& last() const { return last_; }
  MonoTime seen_at() const { return seen_at_; }
  /// It says something of itself.
  bool tells() const { return last_.own.has_value(); }
  bool IsInCollective() const { return tells() && last_.own->IsInCollective(); }
  Activity activity() const { return tells() ? last_.own->activity : Activity::kOther; }

  /// It is stopped, traced or dead.
  bool IsStopped() const;

  /// Seen to be without any movement in what it says of itself, since it was stopped last; of those
  /// that say nothing, 0.
  Duration stood() const { return stood_; }
  /// Seen to say nothing of itself.
  Duration silent() const { return silent_; }
  /// Seen to be stopped, traced or dead.
  Duration stopped() const { return stopped_; }
  /// Seen to be in uninterruptible sleep without using the CPU.
  Duration asleep() const { return asleep_; }
  /// Seen to use less than kIdleShare of a CPU.
  Duration idle() const { return idle_; }
  /// It has computed most of the time since it has not moved.
  bool IsBusy() const { return stood_ > Duration{} && cpu_stood_ * 2 > real_stood_; }
  /// Since this life of it was first seen.
  int64_t steps_done() const;
  uint64_t collectives_done() const;

  static constexpr double kIdleShare = 0.03;

 private:
  void Begin(Sample sample, MonoTime now);
  Moved NoteMovement(const Sample& sample, Duration seen, Duration real);
  void NoteOutside(const Sample& sample, Duration seen, Duration real);

  bool is_seen_ = false;
  Sample last_;
  MonoTime seen_at_{};
  /// The first that it has told; -1: none yet.
  int64_t first_step_ = -1;
  uint64_t first_ended_ = 0;
  Duration stood_{};
  Duration cpu_stood_{};
  Duration real_stood_{};
  Duration silent_{};
  Duration stopped_{};
  Duration asleep_{};
  Duration idle_{};
};

}  // namespace fsdprun::watch
