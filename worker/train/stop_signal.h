#pragma once

#include <chrono>

namespace fsdprun::worker {

/// SIGTERM and SIGINT as a wish to stop after the running step. When a peer is dead the step never
/// ends; so a process that has not acknowledged a while after the signal says so and leaves with
/// contract::kExitFailure, instead of holding up the restart of the job until it is killed. One per
/// process; the handlers stay for the life of the process.
class StopSignal {
 public:
  /// Installs the handlers.
  static void Install();
  /// How long after a signal the process waits for the trainer to ask. Long phases (evaluation,
  /// saving) need more than a step. Counts from now if a signal has come already.
  static void SetPatience(std::chrono::milliseconds patience);
  /// Whether a signal has come.
  static bool IsRaised();
  /// The wish is being followed: no more hurry.
  static void Acknowledge();
  /// For a process with nothing left to finish: returns after `limit`, or not at all when a signal
  /// to stop comes or has come before.
  static void AwaitEnd(std::chrono::milliseconds limit);
};

}  // namespace fsdprun::worker
