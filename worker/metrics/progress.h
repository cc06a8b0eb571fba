#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "worker/contract/control_channel.h"
#include "worker/metrics/metric_sink.h"

namespace fsdprun::worker {

/// "loss 2.3104 grad 0.92 lr 3.00e-04 12.3k tok/s 410 MiB ETA 3m12s", with "41% MFU" before the
/// memory where that is known. Pure.
std::string FormatProgress(const StepMetrics& metrics, double eta_seconds);

/// "870", "12.3k", "1.25M".
std::string FormatRate(double per_second);

/// "59s", "3m12s", "4h05m", "2d03h".
std::string FormatDuration(double seconds);

/// Remaining time from the recent speed: an exponential mean over about 20 steps. Pure.
class EtaEstimate {
 public:
  void Record(double step_seconds);
  double SecondsFor(int64_t steps) const { return mean_ * static_cast<double>(steps); }

 private:
  double mean_ = 0;
};

/// Which process displays the progress, and how.
enum class ProgressView {
  kNone,      // another rank's
  kLauncher,  // the launcher, from control records
  kTerminal,  // this process redraws one line
  kPlain,     // this process prints plain lines
};

/// Displays steps and events on standard output and sends steps to the agent. Only rank 0 displays
/// anything.
class Progress : public MetricSink {
 public:
  using Clock = std::chrono::steady_clock;

  /// `channel` outlives this object. `now` is the clock that limits redrawing.
  Progress(ProgressView view, int64_t total_steps, int64_t every_steps, ControlChannel& channel,
           std::function<Clock::time_point()> now = Clock::now);
  ~Progress() override;

  void Step(const StepMetrics& metrics) override;
  void Evaluation(int64_t step, double loss) override;
  /// Prints a separate line: checkpoint, resume.
  void Event(const std::string& text);

 private:
  void Redraw(const std::string& line);

  ProgressView view_;
  int64_t total_steps_;
  int64_t every_steps_;
  ControlChannel& channel_;
  std::function<Clock::time_point()> now_;
  EtaEstimate eta_;
  Clock::time_point last_shown_{};
  bool has_open_line_ = false;
};

}  // namespace fsdprun::worker
