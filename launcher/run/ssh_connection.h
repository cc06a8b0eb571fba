#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_table.h"
#include "launcher/report/console.h"
#include "launcher/run/child_process.h"
#include "proto/cluster/build_info.h"

namespace fsdprun {

/// An ssh and the node's part of a job that it starts: what that prints, line by line, and its
/// standard input, whose end it takes for the end of its launcher. Thread: loop thread only, hooks
/// too; a hook must not destroy it.
class SshConnection {
 public:
  struct Hooks {
    /// The node's part is there. What was said before it (by ssh, by the login shell) is not
    /// output.
    std::function<void(const BuildInfo& build)> on_hello;
    /// Whole lines, of what the node's part has said.
    std::function<void(ConsoleStream stream, absl::string_view lines)> on_lines;
    /// Whether the reader of those lines takes more; Resume() when it does again.
    std::function<bool(ConsoleStream stream)> has_room;
    /// ssh has ended, and its last line was passed on: its exit code, or 128 + n for signal n.
    std::function<void(int code)> on_end;
    /// In place of all others: ssh could not be started, with what to do. Errors: ChildProcess's.
    std::function<void(const absl::Status& why)> on_failure;
  };

  SshConnection(EventLoop& loop, Hooks hooks);
  /// Kill().
  ~SshConnection();
  SshConnection(const SshConnection&) = delete;
  SshConnection& operator=(const SshConnection&) = delete;

  /// Begins to start ssh; its file system may hang. Call once.
  void Start(const std::vector<std::string>& command, const Environment& environment);
  /// Not more than one text; after on_hello.
  void Send(std::string text);
  /// The node's part is to end. Its output is still passed on.
  void HangUp();
  /// Ends ssh at once, and with it the node's part, in its own time; no hook is called any more.
  void Kill();
  void Resume();

  bool has_said_hello() const { return streams_[0].is_of_node; }
  /// After Start(), until on_end, on_failure or Kill().
  bool is_open() const { return is_open_; }
  /// ssh itself does not run yet.
  bool is_starting() const { return process_.is_starting(); }
  /// What ssh, the login shell and the program have said last, until on_hello; then what came on
  /// standard error.
  const std::string& last_words() const { return last_words_; }

 private:
  struct Stream {
    UniqueFd fd;
    std::string text;
    /// The node's part has said hello on it: what follows is output.
    bool is_of_node = false;
    bool is_paused = false;
  };

  void OnStarted(ChildProcess::Pipes pipes);
  void OnReadable(size_t index);
  /// False: there is nothing more, for now or for ever.
  bool ReadPiece(size_t index);
  void PassLines(size_t index, bool is_all);
  void TakeFirstLines(size_t index);
  void NoteWords(absl::string_view text);
  void OnWritable();
  void OnProcessEnd(int code);
  void OnFailure(const absl::Status& why);
  void CloseStream(size_t index);

  EventLoop& loop_;
  const Hooks hooks_;

  std::string program_;
  bool is_open_ = false;
  UniqueFd input_;
  std::array<Stream, 2> streams_;
  std::string unsent_;
  bool is_writing_ = false;
  std::string last_words_;
  ChildProcess process_;
};

}  // namespace fsdprun
