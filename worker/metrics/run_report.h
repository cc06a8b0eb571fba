#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/contract/control_channel.h"
#include "worker/metrics/fault_notice.h"
#include "worker/metrics/metrics.h"
#include "worker/metrics/progress.h"

namespace fsdprun::worker {

struct RunReportOptions {
  ProgressView view = ProgressView::kNone;
  /// Only rank 0 tells and records anything.
  bool is_first_rank = false;
  /// train.steps and metrics.every_steps.
  int64_t total_steps = 0;
  int64_t every_steps = 0;
  /// metrics.jsonl and checkpoint.dir; empty: none.
  std::string metrics_path;
  std::string checkpoint_dir;
};

// Note [Faults that may pass]
// A disk that is full now need not be so at the next period. So what cannot be written then is told
// and left out: metrics on rank 0 alone, a checkpoint on all ranks, which see the same error. Of
// checkpoints that holds whatever the reason, since somebody may mend it before the next, unless
// checkpoint.on_failure is stop. Only the last one must succeed, since nothing comes after it.

/// What a run tells of itself: events and progress on the console and to the launcher, records in
/// the metrics file. Thread: one.
class RunReport {
 public:
  /// `channel` outlives this object.
  RunReport(RunReportOptions options, ControlChannel& channel);

  /// A line of its own: evaluation, checkpoint, resume.
  void Event(const std::string& text) { progress_.Event(text); }

  /// From now on there are records; before, there is progress only. On rank 0. `is_replaced`:
  /// whether another launch uses checkpoint.dir now, which is asked before the file is changed; it
  /// outlives this object. Errors: MetricsError, unless it may pass.
  void OpenMetrics(int64_t completed_steps, MetricsOrigin origin,
                   std::function<bool()> is_replaced);

  // Errors of all that follow: MetricsError, unless it may pass or this process was replaced.
  void Step(const StepMetrics& metrics);
  void Evaluation(int64_t step, double loss);
  /// A warning on standard error and in the metrics, as often as `notice` lets it be told.
  void Warn(FaultNotice& notice, int64_t step, const std::string& text);

 private:
  /// Unless it is open; then it tells itself whose it is.
  void Open();
  /// Opens the metrics file if it is not open. An empty record is none.
  void Record(int64_t step, const std::string& record);

  RunReportOptions options_;
  Progress progress_;
  std::unique_ptr<MetricsLog> metrics_;
  std::function<bool()> is_replaced_;
  FaultNotice metrics_notice_;
};

}  // namespace fsdprun::worker
