#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// A program and what it says, line by line. It reads nothing. It is in a process group of its own:
/// a Ctrl-C of the terminal is for the launcher, which ends the job in order. Thread: loop thread
/// only, hooks too.
class ChildCommand {
 public:
  enum class Reads {
    kErrors,  ///< Standard error; it shares standard output with this process.
    kAll,     ///< Both, as they come.
  };
  struct Hooks {
    /// Whole lines.
    std::function<void(absl::string_view lines)> on_lines;
    /// Whether the reader of those lines takes more; asked again and again while it does not, and
    /// no longer once the process has ended.
    std::function<bool()> has_room;
    /// It has ended, and its last line was passed on: its exit code, or 128 + n for signal n.
    std::function<void(int code)> on_end;
    /// In place of all others: it could not be started. NOT_FOUND if there is no such program,
    /// UNAVAILABLE for what may pass, such as a limit of processes, else INTERNAL.
    std::function<void(const absl::Status& why)> on_failure;
  };

  ChildCommand(EventLoop& loop, Reads reads, Hooks hooks);
  ~ChildCommand();
  ChildCommand(const ChildCommand&) = delete;
  ChildCommand& operator=(const ChildCommand&) = delete;

  /// Begins to start it, on a thread of its own: exec waits for the program's file system, and for
  /// each folder of PATH before its own. Call once.
  void Start(const std::vector<std::string>& command, const Environment& environment);
  /// One that is being started gets the latest as soon as it runs.
  void Signal(int signal);
  /// Ends it at once, if it has not ended; no hook is called any more. With a short wait. One that
  /// is being started is ended as soon as it runs.
  void Kill();
  bool is_starting() const { return birth_ != nullptr; }
  /// It was started, and has not ended.
  bool is_running() const { return child_.pidfd.valid(); }

 private:
  struct Child {
    pid_t pid = 0;
    UniqueFd pidfd;
    UniqueFd output;
  };
  struct Birth;

  static absl::StatusOr<Child> StartChild(const std::vector<std::string>& command,
                                          const Environment& environment, Reads reads);
  static void Deliver(const std::shared_ptr<Birth>& birth, absl::StatusOr<Child> child,
                      const LoopGate::Post& post);
  static std::optional<absl::StatusOr<Child>> TakeChild(Birth& birth, bool is_last);
  static void EndChild(const Child& child, int wait_ms);
  void OnStarted();
  void OnOutput();
  ssize_t ReadPiece();
  void PassLines();
  void OnProcessEnd();
  void TakeRest();
  void CloseOutput();

  // Constant after construction.
  EventLoop& loop_;
  const Reads reads_;
  const Hooks hooks_;
  const LoopGate gate_;

  // Owned by the loop thread.
  /// Until it was started, or could not be.
  std::shared_ptr<Birth> birth_;
  int early_signal_ = 0;
  Child child_;
  EventLoop::TimerId retry_ = 0;
  std::string text_;
};

}  // namespace fsdprun
