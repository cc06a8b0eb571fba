#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "base/event_loop.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/daemon/file_growth.h"
#include "launcher/daemon/session_folder.h"

namespace fsdprun {

/// One session of a daemon: its process, and its output on the way to whoever follows it, which is
/// read from files (the loop waits for the daemon's folder, which is on a local disk). At most
/// kWindowBytes of a stream are on the way: what is not shown yet costs disk, not memory. Thread:
/// loop thread only, hooks too.
class DaemonSession {
 public:
  static constexpr uint64_t kWindowBytes = 256u << 10;
  static constexpr size_t kPieceBytes = 64u << 10;
  /// Of a stream of one that keeps its output, the last are there.
  static constexpr uint64_t kKeptBytes = 256u << 20;

  /// What becomes of output that was shown.
  enum class Output { kDropped, kKept };

  struct Hooks {
    /// There may be something to Take().
    std::function<void()> on_more;
    /// Its process has ended.
    std::function<void()> on_end;
  };

  /// `process` ended already: so has the session.
  DaemonSession(EventLoop& loop, FileGrowth& growth, std::string folder, SessionProcess process,
                Output output, Hooks hooks);
  ~DaemonSession();
  DaemonSession(const DaemonSession&) = delete;
  DaemonSession& operator=(const DaemonSession&) = delete;

  /// In the place of its process, which has ended: the session goes on. Also within on_end.
  void GoOn(SessionProcess process);
  /// Its process has left an exit code: it was not killed.
  bool has_told_end() const { return ReadSessionExit(folder_).has_value(); }
  /// Nothing happens once it has ended.
  void Signal(int signal);
  bool is_running() const { return process_.pidfd.valid(); }
  pid_t pid() const { return process_.pid; }

  /// Somebody follows who has shown so much; goes on behind that.
  void Follow(uint64_t stdout_shown, uint64_t stderr_shown);
  /// So much was shown: it is not kept.
  void Shown(uint64_t stdout_shown, uint64_t stderr_shown);
  /// The next piece of output, or its end, which comes once; nothing while there is nothing, or too
  /// much is on the way.
  std::optional<v1::DaemonMessage> Take();

 private:
  struct Stream {
    UniqueFd file;
    /// It is there, but could not be opened yet.
    bool is_unread = false;
    uint64_t sent = 0;
    uint64_t shown = 0;
    /// Up to there it was given back to the file system.
    uint64_t dropped = 0;
  };

  void OpenStream(size_t index);
  void WatchProcess();
  void OnProcess();
  void OnGrowth();
  static void Drop(Stream& stream, uint64_t end);
  std::string Read(Stream& stream);
  int ExitCode() const;

  // Constant after construction.
  EventLoop& loop_;
  FileGrowth& growth_;
  const std::string folder_;
  const Output output_;
  const Hooks hooks_;

  // Owned by the loop thread.
  SessionProcess process_;
  std::array<Stream, 2> streams_;
  std::array<int, 3> watches_{};
  EventLoop::TimerId retry_timer_ = 0;
  int wait_status_ = 0;
  bool is_start_sent_ = false;
  bool is_end_sent_ = false;
};

}  // namespace fsdprun
