#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/log.h"
#include "base/mono_time.h"
#include "launcher/report/console_channel.h"

namespace fsdprun {

enum class ConsoleStream { kOut, kError };

/// The launcher's standard output and error. Whole lines only, so that output of several workers
/// never mixes within a line; on a terminal a progress line stays at the bottom and is redrawn
/// after other lines. Threads write, so that a slow or blocked reader never blocks the loop; one
/// for each stream, so that a blocked standard output does not hold up what is said on standard
/// error, but one for both if they are the same pipe or terminal, where their lines must not mix
/// either. A closed pipe (`| head -1`) is not an error: the rest is dropped. A write that fails, as
/// on a full disk, is told of once, and has_failed(). Thread: any, except where noted. Memory: what
/// is queued; producers of bulk output check HasRoom() first.
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

  /// `on_room` is called on a thread of the console when a stream has room again after HasRoom()
  /// was false for it; `on_failure` once, with an errno, when standard output cannot be written,
  /// unless standard error is the same file.
  explicit Console(const Options& options, const std::function<void()>& on_room = nullptr,
                   const std::function<void(int error)>& on_failure = nullptr);

  /// Queues text that consists of whole lines (a missing last newline is added).
  void WriteLines(ConsoleStream stream, absl::string_view text);
  /// Replaces the progress line; nothing happens unless it is drawn.
  void SetProgress(std::string text);
  bool draws_progress() const { return options_.draws_progress; }
  bool HasRoom(ConsoleStream stream) { return ChannelOf(stream).HasRoom(); }
  ConsoleChannel::Progress ProgressOf(ConsoleStream stream) { return ChannelOf(stream).progress(); }
  /// Waits until a stream that has no room has some, but not longer than to `deadline`.
  void WaitForRoom(MonoTime deadline);
  /// Something of either stream could not be written, though its reader is there.
  bool has_failed() const {
    return error_.has_failed() || (out_.has_value() && out_->has_failed());
  }

  /// Something of the stream was dropped, for whatever reason.
  bool HasDropped(ConsoleStream stream) { return ChannelOf(stream).has_dropped(); }

  /// Waits until everything queued so far is written; false if it is not by `deadline`.
  bool WaitWritten(MonoTime deadline);
  /// The same of one stream, whoever reads the other. What was dropped counts as written.
  bool WaitWritten(ConsoleStream stream, MonoTime deadline) {
    return ChannelOf(stream).WaitWritten(deadline);
  }

  /// Waits until everything is written or `deadline` has passed, then ends the threads; what can be
  /// written without blocking is still written. Idempotent; one thread only. The destructor does
  /// the same with a deadline of now.
  void Close(MonoTime deadline);

 private:
  ConsoleChannel& ChannelOf(ConsoleStream stream) {
    return stream == ConsoleStream::kOut && out_.has_value() ? *out_ : error_;
  }

  const Options options_;
  /// Of both streams, if they are the same file.
  ConsoleChannel error_;
  std::optional<ConsoleChannel> out_;
};

/// Console options for this process's own streams: a progress line if standard error is a terminal
/// that can draw one.
Console::Options OptionsForProcess(const char* term, const char* columns);

/// Sends base/log lines to `console` (nullptr: back to standard error). The console must outlive
/// its use.
void RouteLogTo(Console* console);

}  // namespace fsdprun
