#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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
///
/// Note [The child's memory]
/// Until exec the child runs in the keeper's memory, on a stack of its own (CLONE_VM): to copy the
/// keeper's page tables, and then each page that either of them writes to, takes longer than the
/// rest of a start. Unlike after vfork() the keeper goes on meanwhile, because exec may wait for a
/// file system that hangs. Therefore the child writes to nothing but its stack and its plan, which
/// must stay until it has another memory or none: it is at the end of file of the failure pipe, or
/// when the child can be reaped. It makes bare system calls, because errno is the keeper's. Where
/// it could end the keeper by the way it ends (MayShareMemory), it runs in a copy.
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

  /// What StartChild() hands to the child.
  struct Child {
    ChildFds fds;
    int failure_pipe = -1;
    pid_t keeper = -1;
    /// Whose descendants may read its stacks; see PR_SET_PTRACER.
    pid_t tracer = -1;
  };
  Child child;
  /// Of the child, which calls nothing that needs more.
  static constexpr size_t kStackBytes = 16 << 10;
  std::unique_ptr<std::byte[]> stack;
};

/// Whether a process may run in the keeper's memory on this kernel. Before Linux 5.16 a signal that
/// dumps core ends all processes that share the memory of the one that gets it. `release`: as
/// uname() has it. Pure.
bool MayShareMemory(const char* release);

/// Starts a child in a session of its own that dies with the keeper. Returns at once: exec's
/// success comes through the failure pipe, so that a program on a hanging file system cannot stop
/// the keeper. Until then, or until the child has ended, `plan` must stay where it is.
StartedChild StartChild(SpawnPlan& plan, const ChildFds& fds);

/// Verb phrase and object of a failure, for SpawnFailedReport.
SpawnFailedReport Describe(const ChildFailure& failure, const SpawnPlan& plan, int local_rank);

}  // namespace fsdprun::keeper
