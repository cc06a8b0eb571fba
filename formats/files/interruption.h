#pragma once

#include <array>
#include <csignal>

namespace fsdprun {

/// While it exists, the first SIGINT, SIGTERM or SIGHUP makes the outputs that are begun fail, so
/// that they are removed. One that comes where nothing is begun, and a second one, ends the
/// program. Signals that were ignored stay ignored. At most one exists.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Whether such a signal has come.
  static bool HasCome();
  /// Ends the program by the signal that has come, as if nothing had caught it; returns if none
  /// has.
  static void EndIfInterrupted();

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace fsdprun
