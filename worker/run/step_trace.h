#pragma once

#include <fsdp/trace.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "worker/metrics/fault_notice.h"
#include "worker/metrics/merged_trace.h"
#include "worker/run/run_context.h"

namespace fsdprun::worker {

/// Records a timeline of the steps metrics.trace_steps, counted from the first of this start: each
/// rank's in its own file, and of all of them one, which rank 0 puts together on a thread of its
/// own. What goes wrong with it is told, and costs nothing else. Thread: one. All calls are
/// collective.
class StepTrace {
 public:
  /// As MergeTraces.
  using Merge =
      std::function<void(const std::vector<std::filesystem::path>& timelines, std::ostream& out)>;

  struct Limits {
    /// Of the ranks' files together: what no viewer opens is not put together.
    int64_t merged_bytes_max = int64_t{2} << 30;
    /// How long End() waits until they are.
    std::chrono::milliseconds merge_max = std::chrono::minutes(2);
  };

  /// `context` outlives this object.
  explicit StepTrace(const RunContext& context) : StepTrace(context, MergeTraces, Limits{}) {}
  StepTrace(const RunContext& context, Merge merge, Limits limits);
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void BeginStep(int64_t step);
  /// Whether the present step is a part of the timeline. The same on all ranks.
  bool is_on() const { return is_on_; }
  /// The step, or what came of it, has ended.
  void EndStep();
  /// There are no more steps, and what is left to be done may take its time.
  void End();

 private:
  /// What is told of a merge.
  struct Merged {
    std::string event;
    std::string warning;
  };

  void Start();
  void Stop();
  void BeginMerge();
  /// Tells what has come of it, if it has ended.
  void TellMerge();
  void Warn(const std::string& text);
  std::string FileOf(int64_t rank) const;

  RunContext context_;
  Merge merge_;
  Limits limits_;
  int64_t step_ = 0;
  /// The first of this start.
  std::optional<int64_t> first_step_;
  bool is_wanted_ = false;
  /// The same on all ranks, also where the recording has failed.
  bool is_on_ = false;
  std::optional<fsdp::TraceRange> step_range_;
  std::optional<fsdp::TraceRange> phase_range_;
  /// On rank 0, of a merge that was begun.
  std::future<Merged> merging_;
  FaultNotice notice_;
};

}  // namespace fsdprun::worker
