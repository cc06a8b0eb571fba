#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "worker/metrics/metrics.h"

namespace fsdprun::worker {

/// Of which run what follows is.
struct RunStart {
  /// 0: it begins.
  int64_t completed_steps = 0;
  MetricsOrigin origin = {};
  /// Whether another launch uses checkpoint.dir now; asked before files of the run are changed.
  std::function<bool()> is_replaced = {};
};

/// A place where what a run measures goes: a file, a display. Begin() comes first and End() last.
/// Thread: one. Errors of all: MetricsError; what it says of is lost then, and
/// later calls may succeed, but not after MetricsReplacedError.
class MetricSink {
 public:
  MetricSink() = default;
  virtual ~MetricSink() = default;
  MetricSink(const MetricSink&) = delete;
  MetricSink& operator=(const MetricSink&) = delete;

  /// Also when the run has gone back to a checkpoint: records of later steps are replaced by what
  /// follows.
  virtual void Begin(const RunStart& /*start*/) {}
  virtual void Step(const StepMetrics& metrics) = 0;
  virtual void Evaluation(int64_t step, double loss) = 0;
  /// Of what went wrong and did not end the run.
  virtual void Warning(int64_t /*step*/, const std::string& /*text*/) {}
  /// The run ends: what is under way is finished, as far as that takes no long time; the rest is
  /// lost.
  virtual void End() {}
};

/// Which steps are recorded: every few ones, and the last.
struct RecordedSteps {
  int64_t every = 0;  // 0: none
  int64_t total = 0;

  bool Has(int64_t step) const { return every > 0 && (step % every == 0 || step == total); }
};

}  // namespace fsdprun::worker
