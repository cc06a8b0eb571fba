#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "worker/contract/control_channel.h"
#include "worker/run/stop_plan.h"

namespace fsdprun::worker {

// Note [Stopping in the middle]
// A request to stop reaches the ranks at different times, and a forward or a step that one rank
// leaves blocks the others. So all ranks vote, while they compute: in an evaluation, in a step of
// several forwards, after a save. A step is finished if it and a checkpoint fit into the grace;
// otherwise its gradients are dropped, and the checkpoint is of the step before. An evaluation is
// dropped in any case, and done by the run that continues. A save is the work kept: it goes on
// until the grace is nearly over. A step that is a graph is finished in any case: Note [A step as a
// graph].

/// What a rank answers when all are asked whether to stop; see Vote.
enum StopAnswer { kGoOn = 0, kStop = 1, kAbandonStep = 2 };

/// Hears of requests to stop, from signals and the agent, and says what still fits into the grace.
/// Of this rank only. Thread: any; the trainer's and that of a save.
class StopListener {
 public:
  /// `channel` outlives this object.
  explicit StopListener(ControlChannel& channel) : channel_(channel) {}

  bool IsRequested();
  /// kStop or kGoOn.
  StopAnswer Answer() { return IsRequested() ? kStop : kGoOn; }
  /// Whether a step of which `done` of `forwards` took `seconds` no longer fits into the grace.
  bool MustAbandonStep(int64_t done, int64_t forwards, double seconds);
  bool MustGiveUpSave();

  // What it plans with: see StopPlan.
  void NoteStep(StopPlan::Duration time);
  void NoteSave(StopPlan::Duration time);
  void SetSaving(bool is_saving);
  std::chrono::milliseconds step_timeout();

 private:
  ControlChannel& channel_;
  std::mutex mutex_;
  StopPlan plan_;  // guarded by mutex_
};

}  // namespace fsdprun::worker
