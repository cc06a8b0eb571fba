#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/mono_time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace fsdprun {

enum class ConsoleStream { kOut, kError };

/// The launcher's standard output and error. Whole lines only, so that output of several workers
/// never mixes within a line; on a terminal a progress line stays at the bottom and is redrawn
/// after other lines. A separate thread writes, so that a slow or blocked reader never blocks the
/// loop. A closed pipe (`| head -1`) is not an error: the rest is dropped. Thread: any, except
/// where noted. Memory: what is queued; producers of bulk output check HasRoom() first.
class Console {
 public:
  struct Options {
    int out_fd = 1;
    int error_fd = 2;
    /// Draw the progress line; meant for terminals.
    bool draws_progress = false;
    /// Columns of the terminal.
    size_t width = 80;
    /// Bytes queued above which HasRoom() is false.
    size_t room_bytes = 1u << 20;
  };

  /// Starts the writer thread. `on_room` is called on that thread when there is room again after
  /// HasRoom() was false.
  explicit Console(const Options& options, std::function<void()> on_room = nullptr);
  /// Close() with a deadline of now.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  /// Queues text that consists of whole lines (a missing last newline is added).
  void WriteLines(ConsoleStream stream, absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_);
  /// Replaces the progress line; nothing happens unless it is drawn.
  void SetProgress(std::string text) ABSL_LOCKS_EXCLUDED(mu_);
  bool draws_progress() const { return options_.draws_progress; }
  bool HasRoom() ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits for room; false if there is none by `deadline`.
  bool WaitForRoom(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);

  /// Waits until everything queued so far is written; false if it is not by `deadline`.
  bool WaitWritten(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);

  /// Waits until everything is written or `deadline` has passed, then ends the thread; what can be
  /// written without blocking is still written. Idempotent; one thread only.
  void Close(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Item {
    ConsoleStream stream;
    std::string text;
  };

  void WriterMain() ABSL_LOCKS_EXCLUDED(mu_);
  void Emit(const Item& item);
  void DrawProgress(const std::string& text);
  void EraseProgress();
  void WriteAll(ConsoleStream stream, absl::string_view data);
  bool WaitWritable(int fd);
  bool WaitFinished(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void WaitForMoreRoom() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const Options options_;
  /// Separate open file descriptions of streams that are terminals; else invalid.
  const UniqueFd out_terminal_;
  const UniqueFd error_terminal_;
  const std::function<void()> on_room_;

  // Owned by the writer thread.
  bool progress_is_drawn_ = false;
  bool out_is_gone_ = false;
  bool error_is_gone_ = false;

  std::atomic<bool> gives_up_{false};
  Mutex mu_;
  CondVar changed_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool someone_waits_for_room_ ABSL_GUARDED_BY(mu_) = false;
  std::string progress_ ABSL_GUARDED_BY(mu_);
  bool progress_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;

  std::thread writer_;
};

/// Console options for this process's own streams: a progress line if standard error is a terminal
/// that can draw one.
Console::Options OptionsForProcess(const char* term, const char* columns);

/// Sends base/log lines to `console` (nullptr: back to standard error). The console must outlive
/// its use.
void RouteLogTo(Console* console);

}  // namespace fsdprun
