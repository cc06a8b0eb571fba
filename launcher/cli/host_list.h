#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {

/// Of a daemon, where none is given.
inline constexpr uint16_t kDefaultDaemonPort = 29410;
/// The same of sshd; ssh may know another one (its Port).
inline constexpr uint16_t kDefaultSshPort = 22;

/// `node0,node1:29410,[fe80::1]:29410`, in this order. `port`: where none is given. Pure. Errors:
/// OUT_OF_RANGE for a text that is no host, or for a host and port that are named twice.
absl::StatusOr<std::vector<AgentHost>> ParseAgents(const RawValue& value,
                                                   uint16_t port = kDefaultDaemonPort);

/// One host a line: `HOST[:PORT] [slots=N]`; what follows a # is a comment. Pure. Errors:
/// OUT_OF_RANGE with the line's number.
absl::StatusOr<std::vector<AgentHost>> ParseHostFile(absl::string_view path, absl::string_view text,
                                                     uint16_t port = kDefaultDaemonPort);

/// What the nodes are called: their hosts, with the port where a host has several daemons.
std::vector<std::string> NodeNames(const std::vector<AgentHost>& hosts);

/// The hosts that the job takes, once they are known: sets `--nnodes` where that was not given, and
/// leaves out hosts beyond its maximum. Pure. Errors: OUT_OF_RANGE if there are less than its
/// minimum.
absl::Status TakeHosts(std::vector<AgentHost> hosts, LaunchPlan* plan);

}  // namespace fsdprun
