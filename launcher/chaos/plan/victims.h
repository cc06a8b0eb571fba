#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/chaos/plan/fault.h"

namespace fsdprun::chaos {

/// A process of the job on this machine. The pid alone is reused by the kernel; with the start time
/// it is one process.
struct JobProcess {
  FaultTarget role = FaultTarget::kNone;
  int64_t pid = 0;
  uint64_t start_ticks = 0;
  /// Of a worker: its rank; of an agent or a keeper: the number of its node here. -1: not known.
  int number = -1;
  /// An agent whose process hosts the job's coordinator, too, and the other way round.
  bool is_both = false;
  /// An agent that a daemon may start again: the next one adopts the workers as they are.
  bool is_session = false;

  bool operator==(const JobProcess&) const = default;
};

/// `worker 3 (pid 4711)`.
std::string TextOf(const JobProcess& process);

/// Whom the fault is meant for: of the processes with its role, the one with its number, or the one
/// that its `pick` chooses, in order of number and pid. Nothing if there is none. Pure.
std::optional<JobProcess> ChooseVictim(const std::vector<JobProcess>& processes,
                                       const PlannedFault& fault);

/// The same among numbers from 0 to `count` - 1: proxies, for example. Pure.
std::optional<int> ChooseNumber(int count, const PlannedFault& fault);

}  // namespace fsdprun::chaos
