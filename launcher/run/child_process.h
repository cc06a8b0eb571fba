#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// A program that this one starts, with pipes to it, until it ends. It is in a process group of its
/// own: a Ctrl-C of the terminal is for the launcher, which ends the job in order. Thread: loop
/// thread only, hooks too; a hook must not destroy it.
class ChildProcess {
 public:
  /// What the child has for one of its standard streams.
  enum class Stream {
    kNothing,      ///< /dev/null
    kOfLauncher,   ///< the same as this process
    kPipe,         ///< one whose other end is here
    kPipeOfError,  ///< that of standard error: what is written to both comes in order
  };
  /// Whom signals reach.
  enum class Reach {
    kProcess,
    kGroup,  ///< All in its process group, as from a terminal.
  };
  /// Standard input, output and error.
  using Streams = std::array<Stream, 3>;
  /// Our ends, of the same; they do not block. Invalid where there is no pipe of its own.
  using Pipes = std::array<UniqueFd, 3>;

  struct Hooks {
    std::function<void(Pipes pipes)> on_start;
    /// Its exit code, or 128 + n for signal n. What it said last may still be in the pipes.
    std::function<void(int code)> on_end;
    /// In place of the others: it could not be started. NOT_FOUND if there is no such program,
    /// UNAVAILABLE for what may pass, such as a limit of processes, else INTERNAL.
    std::function<void(const absl::Status& why)> on_failure;
  };

  ChildProcess(EventLoop& loop, Hooks hooks, Reach reach = Reach::kProcess);
  /// One that is being started is ended as soon as it runs; one that runs is left alone.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// Begins to start it, on a thread of its own: exec waits for the program's file system, and for
  /// each folder of PATH before its own. Call once.
  void Start(const std::vector<std::string>& command, const Environment& environment,
             const Streams& streams);
  /// One that is being started gets the latest as soon as it runs.
  void Signal(int signal) { Signal(signal, reach_); }
  void Signal(int signal, Reach reach);
  /// Ends it at once, if it has not ended; no hook is called any more. With a short wait. One that
  /// is being started is ended as soon as it runs.
  void Kill();
  bool is_starting() const { return birth_ != nullptr; }
  /// It was started, and has not ended.
  bool is_running() const { return child_.pidfd.valid(); }
  /// Of one that is running.
  pid_t pid() const { return child_.pid; }

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd pidfd;
    Pipes pipes;
  };
  struct Birth;

  static absl::StatusOr<Child> StartChild(const std::vector<std::string>& command,
                                          const Environment& environment, const Streams& streams);
  static void Deliver(const std::shared_ptr<Birth>& birth, absl::StatusOr<Child> child,
                      const LoopGate::Post& post);
  static void SendTo(const Child& child, Reach reach, int signal);
  static std::optional<absl::StatusOr<Child>> TakeChild(Birth& birth, bool is_last);
  static void EndChild(const Child& child, Reach reach, int wait_ms);
  void OnStarted();
  void OnEnd();

  // Constant after construction.
  EventLoop& loop_;
  const Hooks hooks_;
  const Reach reach_;
  const LoopGate gate_;

  // Owned by the loop thread.
  /// Until it was started, or could not be.
  std::shared_ptr<Birth> birth_;
  int early_signal_ = 0;
  Reach early_reach_ = Reach::kProcess;
  Child child_;
};

}  // namespace fsdprun
