#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/mono_time.h"
#include "launcher/coordinator/job_events.h"
#include "launcher/metrics/duration_histogram.h"

namespace fsdprun {

/// Counts what happens to a job, since its coordinator began. Pure.
class JobTally {
 public:
  static constexpr size_t kFaultKinds = static_cast<size_t>(CauseKind::kWorkerHung) + 1;
  static constexpr size_t kStopKinds = static_cast<size_t>(job::StopKind::kOperator) + 1;

  void On(const job::News& news, MonoTime now);
  /// The workers of the present world have shown progress.
  void Progress(MonoTime now);
  /// Somebody was refused a connection or a call.
  void Refuse() { ++refused_; }

  /// By CauseKind: worlds in which something has failed, by the root cause, once they have stopped.
  const std::array<uint64_t, kFaultKinds>& faults() const { return faults_; }
  /// By job::StopKind: worlds that were stopped and followed by another one whose workers were
  /// started; those that the job ended with.
  const std::array<uint64_t, kStopKinds>& recovered() const { return recovered_; }
  const std::array<uint64_t, kStopKinds>& ended() const { return ended_; }
  /// From what a world was stopped for, until the next one's workers were ordered to start, and
  /// until some showed progress: worlds that were stopped before are part of that outage.
  const DurationHistogram& until_start() const { return until_start_; }
  const DurationHistogram& until_progress() const { return until_progress_; }
  uint64_t joined() const { return joined_; }
  uint64_t lost() const { return lost_; }
  uint64_t quarantines() const { return quarantines_; }
  uint64_t refused() const { return refused_; }
  /// For how long in all the coordinator itself did not run.
  Duration stalled() const { return stalled_; }

 private:
  void Tell(const job::Stalled& stalled, MonoTime now);
  void Tell(const job::NodeJoined& node, MonoTime now);
  void Tell(const job::NodeLost& node, MonoTime now);
  void Tell(const job::NodeQuarantined& node, MonoTime now);
  void Tell(const job::FailureReported& reported, MonoTime now);
  void Tell(const job::WorldStopping& stopping, MonoTime now);
  void Tell(const job::WorldStopped& stopped, MonoTime now);
  void Tell(const job::WorldCommitted& committed, MonoTime now);
  void Tell(const job::JobFinished& finished, MonoTime now);
  template <class Other>
  void Tell(const Other& /*what*/, MonoTime /*now*/) {}

  std::array<uint64_t, kFaultKinds> faults_{};
  std::array<uint64_t, kStopKinds> recovered_{};
  std::array<uint64_t, kStopKinds> ended_{};
  DurationHistogram until_start_;
  DurationHistogram until_progress_;
  uint64_t joined_ = 0;
  uint64_t lost_ = 0;
  uint64_t quarantines_ = 0;
  uint64_t refused_ = 0;
  Duration stalled_{};

  /// When what the present world may be stopped for began.
  std::optional<MonoTime> failed_at_;
  /// A world was stopped, and no other one's workers were started yet.
  std::optional<job::StopKind> stopped_for_;
  /// When what it was stopped for began.
  MonoTime stopped_since_{};
  /// The same, of the first world since there was progress; set until there is some again.
  std::optional<MonoTime> broken_since_;
  /// When the workers of the present world were ordered to start.
  std::optional<MonoTime> started_at_;
  bool was_progress_told_ = false;
};

}  // namespace fsdprun
