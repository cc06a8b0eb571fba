#pragma once

// What each moment of a job was spent on. docs/METRICS.md says what the buckets mean.

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "base/mono_time.h"
#include "launcher/coordinator/job_events.h"

namespace fsdprun {

enum class TimeBucket {
  kRendezvous,  // waits for nodes, or pauses before a restart
  kPrepare,     // the nodes set up logs and store
  kStartup,     // workers were started, and have shown no progress yet
  kProductive,  // steps that had not been done before
  kRunning,     // workers run that do not tell of progress, or not any more
  kRecompute,   // steps that were done before, and the one that a stop cut short
  kHang,    // workers did not get on, and were then stopped: a hang that was found, or no progress
            // for much longer than ever before
  kDetect,  // something had failed, and it was not known yet
  kStop,    // workers are being stopped, for a failure or a change of membership
  kOperator,  // the same, because an operator has asked for it
  kHeadless,  // a coordinator has taken the job over, and waits for its nodes to come back
  kOther,     // the job is decided, and the nodes hear of it
};
inline constexpr size_t kTimeBuckets = 12;

/// As in metrics and in JSON, such as "productive".
std::string_view TimeBucketName(TimeBucket bucket);

/// An account of the time since its coordinator began, in which each nanosecond is in one bucket.
/// Pure: it is told what happens, and when. Times that go backward count as equal.
//
// Note [What is settled]
// What a stretch of time was good for is often known only at its end: whether a step counts is
// known with the next report of progress, or when a failure cuts it short; whether workers were
// starting or do not tell of progress at all, when they first tell of it. So the time since the
// last such point is open. settled() has none of it and only grows, so that it can feed counters.
// All() has it, in the bucket where it most likely goes, and its sum is the time that has passed.
// Steps that are done again count as kRecompute when they are done the second time: so nothing that
// is settled has to be reclassified.
class TimeLedger {
 public:
  using Times = std::array<Duration, kTimeBuckets>;

  /// Workers that have not told of progress for so long, in a job where none ever has, count as
  /// kRunning from then on.
  static constexpr Duration kLongestOpen = std::chrono::minutes(10);
  /// A stretch without progress is longer than ever before if it is so many times as long as the
  /// longest one.
  static constexpr int kHangFactor = 2;

  explicit TimeLedger(MonoTime now) : began_(now), stage_began_(now), since_(now) {}
  /// Of a coordinator that takes over a job which is in that phase. The time before is in the
  /// ledger of the one before it.
  TimeLedger(job::Phase phase, MonoTime now);

  void On(const job::News& news, MonoTime now);
  /// The workers of the present world have reported that they are at this step, another than
  /// before.
  void Progress(int64_t step, MonoTime now);
  /// All nodes of a job that was taken over are connected again.
  void NodesAreBack(MonoTime now);
  /// It is decided how the job ends.
  void Decide(MonoTime now);
  /// Settles what is certain by now.
  void Advance(MonoTime now);

  bool is_headless() const { return stage_ == Stage::kHeadless; }
  MonoTime began() const { return began_; }
  /// Since it began; until the end, once that is over.
  Duration Wall(MonoTime now) const;
  /// See Note [What is settled].
  const Times& settled() const { return times_; }
  Times All(MonoTime now) const;
  /// Steps that later worlds have begun with although an earlier one had done them, as far as they
  /// were reported.
  int64_t repeated_steps() const { return repeated_steps_; }
  /// The part of the latest `window`, or of all the time if that is shorter, that was productive;
  /// empty if no worker has ever told of progress.
  std::optional<double> Goodput(Duration window, MonoTime now) const;

 private:
  enum class Stage { kHeadless, kWaiting, kPreparing, kWorking, kStopping, kEnding, kOver };

  /// Between two samples for Goodput().
  static constexpr Duration kSamplePause = std::chrono::minutes(1);
  static constexpr Duration kLongestWindow = std::chrono::hours(1);

  Duration& At(TimeBucket bucket) { return times_[static_cast<size_t>(bucket)]; }
  void Settle(TimeBucket bucket, MonoTime until);
  void SettleSteps(int64_t step, MonoTime until);
  /// The open time, because the stage is over.
  void CloseStage(MonoTime now);
  /// The same, of workers that are stopped.
  void CutOff(MonoTime now);
  void Enter(Stage stage, MonoTime now);
  void BeginWorld();
  bool IsCertain(MonoTime now) const;
  void Sample(MonoTime now);
  TimeBucket BucketBeforeProgress() const;
  TimeBucket BucketOfStage() const;
  Duration LongestStep() const { return kHangFactor * longest_step_; }

  void Tell(const job::WorldFormed& formed, MonoTime now);
  void Tell(const job::WorldCommitted& committed, MonoTime now);
  void Tell(const job::FailureReported& reported, MonoTime now);
  void Tell(const job::WorldStopping& stopping, MonoTime now);
  void Tell(const job::WorldStopped& stopped, MonoTime now);
  void Tell(const job::JobFinished& finished, MonoTime now);
  template <class Other>
  void Tell(const Other& /*what*/, MonoTime /*now*/) {}

  const MonoTime began_;
  Times times_{};
  Stage stage_ = Stage::kWaiting;
  /// What comes after kHeadless.
  Stage taken_over_at_ = Stage::kWaiting;
  MonoTime stage_began_;
  /// From here on the time is open.
  MonoTime since_;

  // Of the present world.
  bool has_progress_ = false;
  int64_t step_ = -1;
  /// What has failed, failed then; or began to hang.
  std::optional<MonoTime> failed_at_;
  bool has_hung_ = false;
  /// Its workers had been at work under another coordinator.
  bool is_adopted_ = false;
  TimeBucket stop_bucket_ = TimeBucket::kStop;

  // Of the job.
  bool was_progress_told_ = false;
  int64_t highest_step_ = -1;
  int64_t repeated_steps_ = 0;
  /// Between two reports of progress.
  Duration longest_step_{};
  /// When so much of it was productive; for the latest hour, the oldest first.
  std::deque<std::pair<MonoTime, Duration>> samples_;
};

}  // namespace fsdprun
