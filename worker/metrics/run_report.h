#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/contract/control_channel.h"
#include "worker/metrics/fault_notice.h"
#include "worker/metrics/metric_sink.h"
#include "worker/metrics/progress.h"
#include "worker/metrics/run_summary.h"

namespace fsdprun::worker {

struct RunReportOptions {
  ProgressView view = ProgressView::kNone;
  /// Only rank 0 tells and records anything.
  bool is_first_rank = false;
  /// train.steps and metrics.every_steps.
  int64_t total_steps = 0;
  int64_t every_steps = 0;
  /// metrics.jsonl, metrics.tensorboard and checkpoint.dir; empty: none.
  std::string metrics_path = {};
  std::string tensorboard_dir = {};
  std::string checkpoint_dir = {};
  /// The run's configuration, as JSON.
  std::string configuration = {};
  /// ModelFlopsPerToken(); 0: not known.
  double flops_per_token = 0;
  /// What the terminal draws.
  bool is_unicode = false;
};

// Note [Faults that may pass]
// A disk that is full now need not be so at the next period. So what cannot be written then is told
// and left out: metrics on rank 0 alone, a checkpoint on all ranks, which see the same error. Of
// checkpoints that holds whatever the reason, since somebody may mend it before the next, unless
// checkpoint.on_failure is stop. Only the last one must succeed, since nothing comes after it.
// Curves of TensorBoard are nobody's record of the run: nothing that happens to them ends it, and
// they are written by a thread of their own, so that a file system that hangs does not stop it.

/// What a run tells of itself: each event and measurement goes from here to all that display and
/// record it. Thread: one.
class RunReport {
 public:
  /// `channel` outlives this object.
  RunReport(RunReportOptions options, ControlChannel& channel);

  /// What all devices of the job can do in a second, once they are known; 0: that is not.
  void SetPeakFlops(double peak_flops) { peak_flops_ = peak_flops; }

  /// A line of its own: checkpoint, resume.
  void Event(const std::string& text) { progress_.Event(text); }

  /// From now on there are records; before, there is progress only. On rank 0. What
  /// `start.is_replaced` refers to outlives this object. Errors: MetricsError, unless it may pass.
  void OpenMetrics(RunStart start);

  /// The run has gone back to a checkpoint of `step`, before which it had done `tokens`: records of
  /// later steps are removed, as a new start would, and so are later warnings, so tell why after
  /// this. On rank 0. Errors: as above.
  void GoBackTo(int64_t step, int64_t tokens);

  // Errors of all that follow: MetricsError, unless it may pass or this process was replaced.
  void Step(StepMetrics metrics);
  void Evaluation(int64_t step, double loss);
  /// One was saved, at `path`.
  void Checkpoint(const std::string& path);
  /// A warning on standard error and in the metrics, as often as `notice` lets it be told.
  void Warn(FaultNotice& notice, int64_t step, const std::string& text);
  /// The run has ended well: a summary, and the last records.
  void End();

 private:
  using Action = std::function<void(MetricSink&)>;
  /// A file of records, and how its faults are told.
  struct Output {
    std::unique_ptr<MetricSink> sink;
    /// A fault that will not pass ends the run.
    bool is_essential = false;
    FaultNotice notice = {};
  };

  void Record(int64_t step, const Action& action);
  void EndOutputs();
  /// False if this process was replaced, and has nothing to record any more.
  bool RecordIn(Output& output, int64_t step, const Action& action);

  RunReportOptions options_;
  double peak_flops_ = 0;
  Progress progress_;
  /// None before OpenMetrics(), and once this process was replaced.
  std::vector<Output> outputs_;
  RunStart start_;
  int64_t last_step_ = 0;
  RunSummary summary_;
  std::chrono::steady_clock::time_point began_at_{};
};

}  // namespace fsdprun::worker
