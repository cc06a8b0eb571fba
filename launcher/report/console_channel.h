#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "base/mono_time.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Text for a stream whose reader may be slow or blocked: a queue and a thread that writes it. A
/// stream that is a terminal may have a progress line at the bottom, which is redrawn after other
/// text. If the reader has closed its end, the rest is dropped; if a write fails for another
/// reason, it is dropped as well, which is an error. A full disk may get room again: it costs what
/// is written meanwhile, and the text that comes then begins with a line that says so. Thread: any,
/// except where noted.
class ConsoleChannel {
 public:
  struct Options {
    /// Columns of the terminal.
    size_t width = 80;
    /// Bytes queued above which HasRoom() is false.
    size_t room_bytes = 1u << 20;
  };

  /// On the thread; the first when there is room again after HasRoom() was false, the other once,
  /// with an errno, when a write fails.
  struct Callbacks {
    std::function<void()> on_room{};
    std::function<void(int error)> on_failure{};
  };

  /// `fd` is not owned. Starts the thread.
  ConsoleChannel(int fd, const Options& options, Callbacks callbacks);
  /// Close() with a deadline of now.
  ~ConsoleChannel();
  ConsoleChannel(const ConsoleChannel&) = delete;
  ConsoleChannel& operator=(const ConsoleChannel&) = delete;

  /// Queues whole lines.
  void Write(std::string lines) ABSL_LOCKS_EXCLUDED(mu_);
  /// Replaces the progress line.
  void SetProgress(std::string text) ABSL_LOCKS_EXCLUDED(mu_);
  bool HasRoom() ABSL_LOCKS_EXCLUDED(mu_);
  /// Bytes so far; what could not be written, and was dropped, counts as written, too.
  struct Progress {
    uint64_t queued = 0;
    uint64_t written = 0;
    uint64_t dropped = 0;
  };
  Progress progress() ABSL_LOCKS_EXCLUDED(mu_);
  /// A write has failed.
  bool has_failed() const { return has_failed_; }
  /// Something was dropped, for whatever reason: a failure, a reader that has gone, the end.
  bool has_dropped() const { return dropped_bytes_ > 0; }
  /// Waits for room; false if there is none by `deadline`.
  bool WaitForRoom(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits until everything queued so far is written; false if it is not by `deadline`.
  bool WaitWritten(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);
  /// Waits until everything is written or `deadline` has passed, then ends the thread; what can be
  /// written without blocking is still written. Idempotent; one thread only.
  void Close(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void WriterMain() ABSL_LOCKS_EXCLUDED(mu_);
  void DrawProgress(const std::string& text);
  void EraseProgress();
  void WriteText(absl::string_view lines);
  size_t WriteAll(absl::string_view data);
  std::string GapText() const;
  void OnWriteError(int error);
  bool WaitWritable(int fd);
  bool WaitFinished(MonoTime deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void WaitForMoreRoom() ABSL_LOCKS_EXCLUDED(mu_);

  // Constant after construction.
  const int inherited_;
  const Options options_;
  /// A separate open file description of a stream that is a terminal; else invalid.
  const UniqueFd terminal_;
  const bool is_terminal_;
  const Callbacks callbacks_;

  // Owned by the writer thread.
  bool progress_is_drawn_ = false;
  bool is_gone_ = false;
  /// An errno: there was no room for what was to be written last.
  int no_room_error_ = 0;
  /// Dropped since then.
  uint64_t missing_bytes_ = 0;
  bool ends_line_ = true;

  std::atomic<bool> gives_up_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<uint64_t> dropped_bytes_{0};
  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool someone_waits_for_room_ ABSL_GUARDED_BY(mu_) = false;
  std::string progress_ ABSL_GUARDED_BY(mu_);
  bool progress_changed_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;

  std::thread writer_;
};

}  // namespace fsdprun
