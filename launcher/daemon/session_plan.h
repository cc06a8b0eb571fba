#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"

namespace fsdprun {

/// Has the devices that a session was given.
inline constexpr char kVisibleDevices[] = "CUDA_VISIBLE_DEVICES";

/// What a launcher has sent, for people's terminals: not too long, without control characters.
/// Pure.
std::string Printable(std::string text);

/// The variables that a session's launcher has sent.
Environment TraveledEnvironment(const v1::SessionSpec& spec);

/// What the node is to do: the launcher's command line, with the node's place in the job in it.
/// Pure. Errors: as of ParseCommandLine(), for this node's machine; OUT_OF_RANGE if it has no
/// devices to count, INVALID_ARGUMENT for a spec that no launcher of this release makes.
absl::StatusOr<LaunchPlan> PlanOfSession(const v1::SessionSpec& spec,
                                         const Environment& environment,
                                         const MachineFacts& machine);

/// What a job's launcher at a daemon is to do, of a spec with a Head. Pure. Errors: the same.
absl::StatusOr<LaunchPlan> PlanOfHead(const v1::SessionSpec& spec, const Environment& environment,
                                      const MachineFacts& machine);

}  // namespace fsdprun
