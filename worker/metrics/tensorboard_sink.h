#pragma once

#include <functional>
#include <memory>
#include <string>

#include "worker/metrics/background_file.h"
#include "worker/metrics/metric_sink.h"

namespace fsdprun::worker {

/// Curves for TensorBoard: one file of events in `folder` for each start of the run
/// (metrics.tensorboard). The file says from which step on it replaces earlier ones, so that a run
/// that was resumed is one curve. Written beside the training: Note [Faults that may pass].
class TensorBoardSink : public MetricSink {
 public:
  /// `markdown`: shown as the run's configuration.
  TensorBoardSink(std::string folder, std::string markdown, RecordedSteps steps);

  void Begin(const RunStart& start) override;
  void Step(const StepMetrics& metrics) override;
  void Evaluation(int64_t step, double loss) override;
  void End() override;

 private:
  /// Errors: MetricsError for what has come of earlier records.
  void Add(const std::string& event);

  std::string folder_;
  std::string markdown_;
  RecordedSteps steps_;
  /// Null before Begin() and after End().
  std::unique_ptr<BackgroundFile> file_;
};

}  // namespace fsdprun::worker
