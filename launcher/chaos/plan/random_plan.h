#pragma once

#include <cstdint>
#include <vector>

#include "launcher/chaos/plan/fault.h"
#include "launcher/chaos/plan/length.h"
#include "launcher/chaos/plan/powers.h"

namespace fsdprun::chaos {

struct RandomPlanOptions {
  uint64_t seed = 0;
  int faults = 0;
  /// Between faults, on the average: each pause is between half of it and one and a half.
  Duration every{};
  std::vector<FaultKind> kinds;
  std::vector<FaultTarget> targets;
  /// What cannot be done is left out.
  Powers powers;
  /// Of those that last.
  LengthRange length;
  LengthRange latency;
};

/// The same plan for the same options, on every machine; empty if nothing can be done. Pure.
FaultPlan MakeRandomPlan(const RandomPlanOptions& options);

}  // namespace fsdprun::chaos
