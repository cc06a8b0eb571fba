#pragma once

#include "worker/config/config.h"
#include "worker/contract/control_channel.h"
#include "worker/metrics/run_report.h"
#include "worker/metrics/vitals.h"
#include "worker/run/stop_listener.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

/// What the parts of a run use together, and nothing of what they train. All of it outlives them.
struct RunContext {
  const TrainConfig& config;
  const World& world;
  ControlChannel& channel;
  Vitals& vitals;
  RunReport& report;
  StopListener& stop;
};

}  // namespace fsdprun::worker
