#pragma once

#include <fsdp/trace.h>

#include <cstdint>
#include <optional>
#include <string>

#include "worker/metrics/fault_notice.h"
#include "worker/run/run_context.h"

namespace fsdprun::worker {

/// Records a timeline of the steps metrics.trace_steps: each rank's in its own file, and of all of
/// them one, which rank 0 puts together. What goes wrong with it is told, and costs nothing else.
/// Thread: one. All calls are collective.
class StepTrace {
 public:
  /// `context` outlives this object.
  explicit StepTrace(const RunContext& context);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void BeginStep(int64_t step);
  /// The step, or what came of it, has ended.
  void EndStep();
  /// There are no more steps.
  void End();

 private:
  void Start();
  void Stop();
  void Merge();
  void Warn(const std::string& text);
  std::string FileOf(int64_t rank) const;

  RunContext context_;
  int64_t step_ = 0;
  bool is_wanted_ = false;
  /// The same on all ranks, also where the recording has failed.
  bool is_on_ = false;
  std::optional<fsdp::TraceRange> step_range_;
  std::optional<fsdp::TraceRange> phase_range_;
  FaultNotice notice_;
};

}  // namespace fsdprun::worker
