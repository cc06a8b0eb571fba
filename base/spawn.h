#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdprun {

/// A program that goes on by itself, whatever becomes of the one that starts it.
struct DetachedProgram {
  std::string path;
  /// Begins with its name.
  std::vector<std::string> command;
  /// As NAME=value.
  std::vector<std::string> environment;
  /// Each of ours, and the number that it has there, from 0 on. What is not named is closed, but
  /// for the standard streams: input is /dev/null, output and error are ours.
  std::vector<std::pair<int, int>> descriptors;
};

/// Starts it in a session of its own, where a signal for our group is none for it, with no signal
/// blocked or ignored. Returns its process id; the caller waits for it. Thread: any. Errors:
/// UNAVAILABLE names the program.
absl::StatusOr<pid_t> SpawnDetached(const DetachedProgram& program);

/// This process's environment, as NAME=value.
std::vector<std::string> OwnEnvironment();

}  // namespace fsdprun
