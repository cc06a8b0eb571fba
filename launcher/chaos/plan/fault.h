#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mono_time.h"

namespace fsdprun::chaos {

/// What is done to a job.
enum class FaultKind {
  kKill,       ///< SIGKILL
  kStop,       ///< SIGSTOP, and SIGCONT later.
  kPartition,  ///< Nothing passes between an agent and the coordinator for a while.
  kDelay,      ///< What passes between them comes late for a while.
  kFill,       ///< A file system has no room left for a while.
  kCorrupt,    ///< Bytes of the newest checkpoint are flipped, and a worker is killed.
};
inline constexpr FaultKind kFaultKinds[] = {FaultKind::kKill,      FaultKind::kStop,
                                            FaultKind::kPartition, FaultKind::kDelay,
                                            FaultKind::kFill,      FaultKind::kCorrupt};

/// To whom.
enum class FaultTarget { kNone, kWorker, kKeeper, kAgent, kCoordinator };
inline constexpr FaultTarget kFaultTargets[] = {FaultTarget::kWorker, FaultTarget::kKeeper,
                                                FaultTarget::kAgent, FaultTarget::kCoordinator};

/// `kill`, `stop` and so on.
const char* NameOf(FaultKind kind);
/// `worker` and so on; "" for kNone.
const char* NameOf(FaultTarget target);
std::optional<FaultKind> FaultKindOf(absl::string_view name);
std::optional<FaultTarget> FaultTargetOf(absl::string_view name);

/// Whether the kind of fault can be done to the target.
bool Suits(FaultKind kind, FaultTarget target);
/// It takes effect for a while, and is then lifted.
bool Lasts(FaultKind kind);

struct PlannedFault {
  /// Of a plan at fixed times: since all workers ran for the first time. Else the pause before it,
  /// since the fault before it was answered.
  Duration at{};
  FaultKind kind = FaultKind::kKill;
  FaultTarget target = FaultTarget::kNone;
  /// The rank of a worker, the number of a node; unset: `pick` chooses.
  std::optional<int> number;
  uint64_t pick = 0;
  /// Of a kind that lasts.
  Duration length{};
  /// Of kDelay: what is added in each direction.
  Duration latency{};

  bool operator==(const PlannedFault&) const = default;
};

struct FaultPlan {
  std::vector<PlannedFault> faults;
  bool has_fixed_times = false;

  bool operator==(const FaultPlan&) const = default;
};

/// `kill worker 3`, `stop agent for 1.5 s`, `delay agent by 0.2 s for 3 s`.
std::string TextOf(const PlannedFault& fault);

/// A fault in a line, numbered, with its time.
std::string TextOf(const FaultPlan& plan);

}  // namespace fsdprun::chaos
