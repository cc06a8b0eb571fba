#pragma once

// Whether a running world gets on, and which of its ranks hold it up: decided from what the nodes
// tell of their workers. No clock, thread, I/O or log.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/mono_time.h"
#include "launcher/watch/findings.h"
#include "launcher/watch/hang_text.h"
#include "launcher/watch/limits.h"
#include "launcher/watch/sample.h"
#include "launcher/watch/straggler_watch.h"
#include "launcher/watch/suspicion.h"
#include "launcher/watch/watched_rank.h"

namespace fsdprun::watch {

using Event = std::variant<TimerDue, WorldBegan, WorldEnded, VitalsCame, StepReported, ActedOnHang>;

/// Total: every event is legal at any time; samples of another generation or of ranks that the
/// world does not have are dropped. Time: the coordinator's monotonic clock.
class ProgressWatch {
 public:
  struct Options {
    Limits::Options limits{};
    bool looks_for_hangs = true;
    /// See StragglerWatch.
    double straggler_ratio = 0.1;
  };

  explicit ProgressWatch(const Options& options);

  /// What was found by this event.
  Findings Step(const Event& event, MonoTime now);
  /// When TimerDue is to come; MonoTime::max(): never.
  MonoTime wake_at() const { return wake_at_; }

  /// The world hangs.
  const std::optional<HangFound>& hang() const { return hang_; }
  /// For how long it has been seen by now.
  Duration hang_lasted() const { return hang_lasted_; }
  /// It has lasted so long that something is to be done about it, where that is wanted.
  bool IsToBeActedOn() const { return hang_.has_value() && hang_lasted_ >= hang_->act_after; }
  const std::map<uint64_t, SlowFound>& stragglers() const { return stragglers_.slow(); }
  /// After which time without movement a rank in a step hangs, by now.
  Duration StepLimit(MonoTime now) const;

 private:
  /// When a node has last told of its workers.
  struct Heard {
    bool ever = false;
    MonoTime at{};
    /// Of the last while, the time in which it was not heard of as it should.
    Duration missed{};
  };

  void Handle(const TimerDue& due, MonoTime now, Findings* found);
  void Handle(const WorldBegan& began, MonoTime now, Findings* found);
  void Handle(const WorldEnded& ended, MonoTime now, Findings* found);
  void Handle(const VitalsCame& vitals, MonoTime now, Findings* found);
  void Handle(const StepReported& report, MonoTime now, Findings* found);
  void Handle(const ActedOnHang& acted, MonoTime now, Findings* found);

  void Take(const Sample& sample, MonoTime now);
  void LookSoon(MonoTime when);
  void Look(MonoTime now, Findings* found);
  std::vector<int> Present(MonoTime now) const;
  bool IsLate(const WatchedRank& rank) const;
  bool IsNearLimit(const WatchedRank& rank, MonoTime now) const;
  bool IsIncomplete(MonoTime now) const;
  bool IsWaitedFor(const Heard& heard, MonoTime now) const;
  void NoteSilence(Duration since, MonoTime now);
  Duration Silence() const;
  Duration WaitForNode() const;
  Duration FlapWindow() const;
  void NoteWarmUp(const Scene& scene);
  void LearnFrom(const Scene& scene);
  void Learn(Activity in, Duration stood, bool is_late, MonoTime now);
  void LookForHang(const Scene& scene, Findings* found);
  bool IsConfirmed(const Scene& scene, const std::optional<Suspicion>& suspicion);
  bool IsSameAgain(const Suspicion& suspicion, MonoTime now) const;
  std::optional<Suspicion> NoMoreReports(MonoTime now) const;
  HangFound Found(const Scene& scene, const Suspicion& suspicion);
  Duration ActAfter(const Scene& scene, const Suspicion& suspicion) const;
  std::optional<Span> SpanOfHang() const;
  std::string WhyOver(const Scene& scene) const;
  std::optional<Duration> LastedNow(const Scene& scene) const;
  Duration SeenOf(const WatchedRank& rank, HangKind kind) const;
  void EndHang(const std::string& what, MonoTime now, Findings* found);

  // Constant after construction.
  const Options options_;

  Limits limits_;
  StragglerWatch stragglers_;
  uint64_t next_id_ = 1;
  MonoTime wake_at_ = MonoTime::max();

  // Of the world.
  bool is_running_ = false;
  Generation generation_;
  Duration every_ = std::chrono::seconds(1);
  Places places_;
  std::vector<WatchedRank> ranks_;
  std::vector<Heard> heard_;
  bool tells_any_ = false;

  // What is learnt, and what the last look has seen.
  bool is_warm_ = false;
  Duration warm_longest_{};
  bool is_held_up_ = false;
  Duration all_stood_{};
  Activity all_stood_in_ = Activity::kForward;
  bool all_stood_is_late_ = false;
  /// A worker was seen to be stopped.
  MonoTime stopped_at_ = MonoTime::min();
  Duration all_idle_{};

  // Steps as rank 0 reports them.
  int reports_ = 0;
  int64_t reported_step_ = -1;
  MonoTime reported_at_{};
  /// Of the time since then, what was seen: see Note [Time that was seen].
  Duration unreported_{};
  MonoTime looked_at_{};

  /// Since when all looks have found somebody to suspect.
  MonoTime suspected_at_ = MonoTime::max();
  std::optional<HangFound> hang_;
  MonoTime hang_found_at_{};
  Duration hang_lasted_{};
  /// The last hang that ended, of this world, and when.
  std::optional<HangFound> last_hang_;
  MonoTime last_ended_at_{};
};

}  // namespace fsdprun::watch
