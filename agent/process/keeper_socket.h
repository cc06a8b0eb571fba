#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// How long a keeper may take to answer who attaches to it.
inline constexpr Duration kAttachLimit = std::chrono::seconds(5);

/// Where agents find a keeper whose own agent is gone; see Note [A keeper that waits for its
/// agent]. Paths may be longer than a socket's address: only the last part of them is one.
struct KeeperSocket {
  /// Empty: there is none, and the keeper ends with its agent.
  std::string path;
  /// How long it waits for another agent.
  Duration grace{};
  /// It has a copy of this descriptor open, and does nothing with it; -1: none.
  int held_fd = -1;
};

/// A keeper that has taken this process for its agent.
struct AttachedKeeper {
  UniqueFd socket;
  pid_t pid = 0;
  UniqueFd pidfd;
  /// Of the agent before this one; empty if it has left none.
  std::string memo;
  /// Read from the socket behind that.
  std::string incoming;
};

/// A socket for a keeper, of mode 600, in place of one that nobody listens to any more. Errors:
/// INTERNAL with what was attempted.
absl::StatusOr<UniqueFd> ListenForAgents(const std::string& path);

/// Blocks until the keeper has answered. One that has an agent is asked again until `limit`: a
/// child that an agent was starting when it was killed may still hold its socket. Errors: NOT_FOUND
/// if no keeper is there, UNAVAILABLE if it has an agent or does not answer in time,
/// FAILED_PRECONDITION if it is of another build: it is killed then, and its workers with it. One
/// that answers too late ends, with its workers, as soon as it runs again.
absl::StatusOr<AttachedKeeper> AttachToKeeper(const std::string& path,
                                              Duration limit = kAttachLimit);

/// Whether a keeper is there.
bool HasKeeper(const std::string& path);

/// Has a keeper without an agent, if there is one, end its workers and itself; does not wait for
/// that. Errors: UNAVAILABLE if it cannot be asked now.
absl::Status EndKeeper(const std::string& path);

}  // namespace fsdprun
