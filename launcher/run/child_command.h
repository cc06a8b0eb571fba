#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/child_process.h"

namespace fsdprun {

/// A program and what it says, line by line. It reads nothing. Thread: loop thread only, hooks too.
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
    /// In place of all others: it could not be started. Errors: ChildProcess's.
    std::function<void(const absl::Status& why)> on_failure;
  };

  ChildCommand(EventLoop& loop, Reads reads, Hooks hooks);
  ~ChildCommand();
  ChildCommand(const ChildCommand&) = delete;
  ChildCommand& operator=(const ChildCommand&) = delete;

  /// As ChildProcess's.
  void Start(const std::vector<std::string>& command, const Environment& environment);
  void Signal(int signal) { process_.Signal(signal); }
  void Kill();
  bool is_starting() const { return process_.is_starting(); }
  bool is_running() const { return process_.is_running(); }

 private:
  void OnStarted(UniqueFd output);
  void OnOutput();
  ssize_t ReadPiece();
  void PassLines();
  void TakeRest();
  void CloseOutput();

  // Constant after construction.
  EventLoop& loop_;
  const Reads reads_;
  const Hooks hooks_;

  // Owned by the loop thread.
  UniqueFd output_;
  EventLoop::TimerId retry_ = 0;
  std::string text_;
  ChildProcess process_;
};

}  // namespace fsdprun
