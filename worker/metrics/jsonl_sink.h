#pragma once

#include <memory>
#include <string>

#include "worker/metrics/metric_sink.h"

namespace fsdprun::worker {

/// Records in the JSON lines file of the run (metrics.jsonl).
class JsonlSink : public MetricSink {
 public:
  /// `checkpoint_dir`: what another launch may take over; in errors. An empty `path`: nothing is
  /// recorded.
  JsonlSink(std::string path, std::string checkpoint_dir, RecordedSteps steps);

  void Begin(const RunStart& start) override;
  void Step(const StepMetrics& metrics) override;
  void Evaluation(int64_t step, double loss) override;
  void Warning(int64_t step, const std::string& text) override;

 private:
  /// Unless it is open; then it tells itself whose it is.
  void Open();
  void Record(const std::string& record);

  std::string path_;
  std::string checkpoint_dir_;
  RecordedSteps steps_;
  /// Null before Begin().
  std::unique_ptr<MetricsLog> log_;
  std::function<bool()> is_replaced_;
};

}  // namespace fsdprun::worker
