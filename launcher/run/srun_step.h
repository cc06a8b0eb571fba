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

namespace fsdprun {

/// An srun and what it says on standard error, which is that of its tasks too; they share standard
/// output with this process. It is in a process group of its own: a Ctrl-C of the terminal is for
/// the launcher, which ends the job in order. Thread: loop thread only, hooks too.
class SrunStep {
 public:
  struct Hooks {
    /// Whole lines.
    std::function<void(absl::string_view lines)> on_lines;
    /// Whether the reader of those lines takes more; asked again and again while it does not.
    std::function<bool()> has_room;
    /// It has ended, and its last line was passed on: its exit code, or 128 + n for signal n.
    std::function<void(int code)> on_end;
  };

  SrunStep(EventLoop& loop, Hooks hooks);
  ~SrunStep();
  SrunStep(const SrunStep&) = delete;
  SrunStep& operator=(const SrunStep&) = delete;

  /// Errors: NOT_FOUND if there is no such program on PATH, INTERNAL.
  absl::Status Start(const std::vector<std::string>& command, const Environment& environment);
  /// SIGTERM makes srun kill the step at once.
  void Signal(int signal);
  bool is_running() const { return pidfd_.valid(); }

 private:
  void OnOutput();
  void PassLines();
  void OnProcessEnd();
  void EndWhenDone();

  // Constant after construction.
  EventLoop& loop_;
  const Hooks hooks_;

  // Owned by the loop thread.
  pid_t pid_ = 0;
  UniqueFd pidfd_;
  UniqueFd output_;
  EventLoop::TimerId retry_ = 0;
  std::string text_;
  int code_ = 0;
};

}  // namespace fsdprun
