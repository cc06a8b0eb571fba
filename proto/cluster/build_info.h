#pragma once

// Whether the programs on two nodes understand each other.

#include <cstdint>
#include <string>

#include "proto/release.h"

namespace fsdprun {

/// Number of the language of agents and coordinator: one higher with each change that an older
/// program would misunderstand rather than not need.
inline constexpr uint32_t kProtocol = 4;

/// What a program says about itself in the first message of a stream.
struct BuildInfo {
  /// 0: it is older than these numbers.
  uint32_t protocol = kProtocol;
  std::string release = kRelease;
};

inline std::string Described(const BuildInfo& build) {
  return build.protocol == 0
             ? "an older fsdprun that names no protocol"
             : "fsdprun " + build.release + " (protocol " + std::to_string(build.protocol) + ")";
}

/// Empty if the two understand each other; else a clause that names both and says what to do.
inline std::string Mismatch(const BuildInfo& agent, const BuildInfo& coordinator) {
  return agent.protocol == coordinator.protocol
             ? ""
             : "this node runs " + Described(agent) + ", and the coordinator " +
                   Described(coordinator) + "; install the same release on all nodes";
}

}  // namespace fsdprun
