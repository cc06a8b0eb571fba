#pragma once

#include <string>

#include "base/mono_time.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Constants of one incarnation of an agent.
struct NodeSpec {
  /// By this agent's own command line. The next three follow from it, until the coordinator tells
  /// of another one: see Clocks.
  Duration node_lease = Clocks{}.node_lease;
  Duration heartbeat_interval = Clocks{}.heartbeat_interval;
  Duration stream_silence = Clocks{}.stream_silence;
  /// How long an agent that has never been admitted tries to reach the coordinator.
  Duration connect_timeout = std::chrono::seconds(600);
  /// How long workers keep running without a coordinator that may come back: its process is
  /// stopped, its machine is being migrated, the network is down.
  Duration coordinator_grace = Clocks{}.coordinator_grace;
  /// The same once nothing listens at its address: the process has ended, and the job with it. No
  /// process of a job may outlive its launcher by more than 1 s.
  Duration coordinator_ended_grace = std::chrono::milliseconds(500);
  /// Between the stop signal and SIGKILL when the operator signals this agent. Stop orders bring
  /// their own grace.
  Duration stop_grace = std::chrono::seconds(30);
  /// Between SIGKILL and declaring the node wedged.
  Duration kill_wait = std::chrono::seconds(5);
  NodeInfo node;
  /// See AgentJoined.
  std::string cannot_run;
  /// At first; shown in errors, e.g. "10.0.0.1:29400".
  std::string coordinator_endpoint;
};

}  // namespace fsdprun
