#pragma once

// The coordinator lives in a launcher's process and is not restarted: when that process dies, the
// job ends. Every agent that had been admitted notices the broken stream, tries to come back for
// its grace, then ends its workers and exits with an error. A node that is stopped or cut off at
// that moment may take as long after that; a process in uninterruptible sleep as long as it sleeps,
// and is not told of here.

#include <map>

#include "tests/sim/oracles/hearing.h"

namespace fsdprun::sim {

class ShutdownOracle : public Oracle {
 public:
  /// `bound`: the grace without a coordinator, the wait for workers that are being killed, and
  /// what the transport takes to notice. `hearing` outlives the oracle.
  ShutdownOracle(const Hearing& hearing, Nanos bound) : hearing_(hearing), bound_(bound) {}

  void CoordinatorDied(Nanos at);
  /// The job's end was decided while the coordinator lived: from then on agents may exit with 0.
  void Decided() { decided_ = true; }
  void ProcessEnded(Nanos at, int node);
  void AgentExited(Nanos at, int node, int exit_code);

 private:
  void CheckInTime(Nanos at, int node, const char* what);

  const Hearing& hearing_;
  const Nanos bound_;
  Nanos died_at_ = kForever;
  bool decided_ = false;
};

}  // namespace fsdprun::sim
