#pragma once

#include <chrono>
#include <optional>

namespace fsdprun::worker {

/// What still fits between a request to stop and the end of its grace, when whoever asked kills the
/// process. Time comes in as an argument. Pure.
class StopPlan {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Duration = Clock::duration;

  /// Of a request that does not tell it: torchrun's and most schedulers'.
  static constexpr Duration kUnknownGrace = std::chrono::seconds(30);
  /// Assumed of a step before one was measured: the first may load kernels and grow arenas.
  static constexpr Duration kUnknownStep = std::chrono::seconds(30);

  /// A request whose grace is not known. Only the first counts.
  void Request(Time at);
  /// A request with its grace. One that repeats the last changes nothing; another may shorten the
  /// time.
  void Request(Time at, Duration grace);
  /// How long a checkpoint took to write; the best guess for the next.
  void NoteSave(Duration time) { save_time_ = time; }
  /// Whether a checkpoint is being written beside the steps: one more to wait for.
  void SetSaving(bool is_saving) { is_saving_ = is_saving; }
  /// How long a step took.
  void NoteStep(Duration time) { step_time_ = time; }

  bool is_requested() const { return deadline_.has_value(); }
  /// Whether a step that needs `rest` more, and the checkpoints after it, will be done in time. If
  /// not, only the steps before it can be kept. True without a request.
  bool CanFinishStep(Time now, Duration rest) const;
  /// Whether there is no time left for a checkpoint that is being written. Only if the grace is
  /// known: otherwise nothing is lost by going on.
  bool MustGiveUpSave(Time now) const;
  /// After a request, how long to wait for the end of a step until it counts as stuck.
  std::chrono::milliseconds step_timeout() const;

 private:
  std::optional<Time> requested_at_;
  std::optional<Duration> grace_;
  std::optional<Time> deadline_;  // a little before the grace ends
  Duration save_time_{};
  bool is_saving_ = false;
  std::optional<Duration> step_time_;
};

}  // namespace fsdprun::worker
