#pragma once

#include <string>
#include <utility>
#include <vector>

#include "launcher/chaos/plan/campaign.h"

namespace fsdprun::chaos {

/// A campaign against a job that does what the test says, in virtual time.
class CampaignCase {
 public:
  static constexpr Duration kSettle = std::chrono::seconds(2);

  explicit CampaignCase(Campaign::Options options) : campaign(std::move(options)) {
    view = {.answers = true,
            .coordinator_pid = 100,
            .phase = "running",
            .generation = 1,
            .world_size = 4,
            .is_whole = true,
            .max_restarts = 9};
  }

  /// The fault is begun, a world is lost and another one formed, and the job gets on.
  void Answer(size_t index) {
    campaign.OnBegun(index, now, "worker 1 (pid 7)", {.new_world = true});
    ++view.generation;
    ++view.restarts_used;
    After(std::chrono::seconds(1));
    After(kSettle);
  }
  /// A while later the job is asked, and the campaign steps.
  std::vector<Campaign::Action> After(Duration time) {
    now += time;
    view.asked_at = now;
    return campaign.Step(now, view);
  }

  MonoTime now{std::chrono::hours(1)};
  JobView view;
  Campaign campaign;
};

inline Campaign::Options OptionsFor(std::vector<PlannedFault> faults) {
  return {.plan = {.faults = std::move(faults)},
          .patience = std::chrono::seconds(60),
          .settle = CampaignCase::kSettle,
          .needs_full_world = true};
}

inline constexpr Expectation kNewWorld{.new_world = true};

inline PlannedFault KillWorker(Duration at) {
  return {.at = at, .kind = FaultKind::kKill, .target = FaultTarget::kWorker};
}
inline PlannedFault FillDisk(Duration at) {
  return {.at = at, .kind = FaultKind::kFill, .length = std::chrono::seconds(5)};
}
inline PlannedFault StopAgent(Duration at, Duration length) {
  return {.at = at, .kind = FaultKind::kStop, .target = FaultTarget::kAgent, .length = length};
}

}  // namespace fsdprun::chaos
