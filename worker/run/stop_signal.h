#pragma once

#include <chrono>
#include <optional>

namespace fsdprun::worker {

/// SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 (a batch system's notice of its time limit) as a request to
/// stop after the current step. If a peer is dead the step never ends; therefore a process that has
/// not acknowledged the request within a timeout exits with contract::kExitFailure, instead of
/// delaying the job's restart until it is killed. One per process; the handlers stay installed.
class StopSignal {
 public:
  /// Installs the handlers.
  static void Install();
  /// How long after a signal the process waits for Acknowledge(). Long phases (a forward of an
  /// evaluation, saving) need more than a step. Starts now if a signal has already arrived.
  static void SetTimeout(std::chrono::milliseconds timeout);
  /// When the first signal arrived, if one has.
  static std::optional<std::chrono::steady_clock::time_point> RaisedAt();
  /// The request is being handled: cancels the timeout.
  static void Acknowledge();
  /// For a process with nothing left to do: returns after `limit`; a stop signal, also an earlier
  /// one, terminates the process.
  static void WaitForTermination(std::chrono::milliseconds limit);
};

}  // namespace fsdprun::worker
