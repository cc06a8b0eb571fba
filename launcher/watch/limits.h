#pragma once

// After which time without movement a rank hangs: learnt from the run.
//
// Note [What is normal]
// Steps differ from job to job by orders of magnitude, so what is normal is learnt: the longest
// time that the job stood still and then went on by itself, of each span by itself, because a
// checkpoint may take minutes where a step takes milliseconds. kFactor times that is a hang, and
// never less than the floor of the span, because a loaded machine or a slow network delays a short
// step by seconds. What was learnt fades with a half-life of kHalfLife, or of kHalfLives times
// its own length if that is longer, up to kHalfLifeMax, and no more is learnt than what gives the
// longest limit: one odd hour does not blunt the watch for weeks, and what is rare because it is
// long is remembered. The first steps compile, connect and fill caches, and are
// a span of their own until kWarmSteps of them are done, in each world anew.

#include <array>
#include <optional>

#include "base/mono_time.h"
#include "launcher/watch/sample.h"

namespace fsdprun::watch {

/// What has a limit of its own.
enum class Span { kWarmUp, kStep, kData, kOther, kEvaluating, kSaving, kLoading, kReports, kIdle };

inline constexpr int kSpans = 9;
inline constexpr int kFactor = 5;
inline constexpr Duration kHalfLife = std::chrono::hours(1);
inline constexpr Duration kHalfLifeMax = std::chrono::hours(4);
inline constexpr int kHalfLives = 40;
inline constexpr int kWarmSteps = 5;
/// From here on the first steps also show how long those take that follow: what compiles has done
/// so.
inline constexpr int kLateSteps = 2;
/// The least limit of a step.
inline constexpr Duration kStepFloor = std::chrono::seconds(8);
/// Of a rank that computes all the time: it may have met a new shape to compile.
inline constexpr Duration kBusyFloor = std::chrono::seconds(30);
/// Of a worker that is stopped, or dead and not collected.
inline constexpr Duration kStoppedLimit = std::chrono::seconds(8);
/// Of one that is traced: longer than the agent takes to read its stacks.
inline constexpr Duration kTracedLimit = std::chrono::seconds(25);
/// Of a worker that says nothing of itself and is in uninterruptible sleep.
inline constexpr Duration kAsleepLimit = std::chrono::seconds(120);
/// Nothing is done about a hang before it has lasted so long.
inline constexpr Duration kActFloor = std::chrono::seconds(60);
/// It has to last as much longer as kActFactor times its limit, at most so much longer.
inline constexpr int kActFactor = 3;
inline constexpr Duration kActMore = std::chrono::minutes(10);

class Limits {
 public:
  struct Options {
    /// Of everything, whatever was learnt; unset: learnt.
    std::optional<Duration> fixed;
    /// Of the first steps, while nothing is known of them.
    Duration warm_up = std::chrono::seconds(600);
  };

  explicit Limits(const Options& options) : options_(options) {}

  /// How often there are samples: no limit is so short that a lost one would be a hang.
  void SampledEvery(Duration every) { every_ = every; }
  /// The job stood for so long in the span, and has gone on.
  void Learn(Span span, Duration stood, MonoTime now);
  /// `is_busy`: it computes.
  Duration LimitOf(Span span, bool is_busy, MonoTime now) const;
  /// Of a worker that starts: it may import and connect as slowly in a later world as in the first.
  Duration StartLimit(MonoTime now) const;
  Duration StoppedLimit() const;
  Duration TracedLimit() const;
  Duration AsleepLimit() const;
  /// How long a hang has to last before something is done about it, if it was found after `limit`:
  /// what is told too soon costs nothing, but a world that is stopped too soon is lost. A limit
  /// that was given is the user's word.
  Duration ActAfter(Duration limit) const;
  /// The limit of the span is one that was given, or more than the floor because of what was seen.
  bool IsKnown(Span span, MonoTime now) const;
  /// What was learnt of it by now.
  Duration Longest(Span span, MonoTime now) const;

 private:
  struct Learnt {
    Duration longest{};
    MonoTime at{};
  };
  Duration AtLeast(Duration floor) const { return std::max(floor, 4 * every_); }

  Options options_;
  Duration every_ = std::chrono::seconds(1);
  std::array<Learnt, kSpans> learnt_{};
};

/// `is_warm`: the first steps are done.
Span SpanOf(Activity activity, bool is_warm);
/// Of a span in which a rank may hold up the others for long, as is known of it.
bool IsLong(Activity activity);

}  // namespace fsdprun::watch
