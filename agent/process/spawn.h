#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "agent/process/keeper_protocol.h"

namespace fsdprun::keeper {

/// Descriptors that a new worker gets. All are close-on-exec in the keeper.
struct ChildFds {
  /// -1: the stream stays the keeper's own.
  int stdout_fd = -1;
  int stderr_fd = -1;
  /// Kept open across exec under the same number; -1: none.
  int control_fd = -1;
};

/// A process between clone and exec, or an error.
struct StartedChild {
  pid_t pid = -1;
  int pidfd = -1;
  /// Read end: end of file means that exec succeeded, a ChildFailure that it did not.
  int failure_pipe = -1;
  int error = 0;
};

/// What a child that could not exec writes into the failure pipe.
struct ChildFailure {
  enum class Step : int32_t { kSession, kParentDied, kStreams, kCpus, kExec };
  Step step = Step::kExec;
  int32_t error = 0;
  /// Index into SpawnPlan::candidates for kExec.
  int32_t candidate = 0;
};

/// Everything that the child needs, prepared before clone so that the child only makes system
/// calls.
struct SpawnPlan {
  explicit SpawnPlan(const SpawnCommand& command, int control_fd);
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  /// Programs to try in order: argv[0] itself, or one per entry of the worker's PATH.
  std::vector<std::string> candidates;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  /// For a file without a known format, as execvp: /bin/sh <file> <arguments>.
  std::vector<const char*> shell_argv;
  std::vector<const char*> argv;
  std::vector<const char*> envp;
  /// See SpawnCommand.
  uint64_t descriptor_limit = 0;
  /// A bit for each CPU that it may run on; empty: the keeper's.
  std::vector<unsigned long> cpu_mask;
  bool reads_stdin = true;
};

/// Starts a child in a session of its own that dies with the keeper. Returns at once: exec's
/// success comes through the failure pipe, so that a program on a hanging file system cannot stop
/// the keeper.
StartedChild StartChild(const SpawnPlan& plan, const ChildFds& fds);

/// Verb phrase and object of a failure, for SpawnFailedReport.
SpawnFailedReport Describe(const ChildFailure& failure, const SpawnPlan& plan, int local_rank);

}  // namespace fsdprun::keeper
