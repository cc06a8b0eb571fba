#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/output/line_format.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/daemon/daemon_call.h"
#include "launcher/report/console.h"

namespace fsdprun {

/// One node's part of a job, which its daemon runs: has it started, shows its output, and follows
/// it across broken calls. Thread: loop thread only, hooks too; a hook must not destroy it.
class RemoteSession {
 public:
  struct Hooks {
    /// Whole lines.
    std::function<void(ConsoleStream stream, absl::string_view lines)> on_lines;
    /// Whether the reader of those lines takes more; Resume() when it does again.
    std::function<bool(ConsoleStream stream)> has_room;
    /// In place of all others: the daemon does not run it, or nobody could be asked.
    std::function<void(const absl::Status& why)> on_refused;
    /// Its job has started; only of a job's launcher. May be null.
    std::function<void()> on_started{};
    /// It has ended, and its last line was passed on.
    std::function<void(int code)> on_end;
    /// It may have ended or not: nobody can tell any more.
    std::function<void(const absl::Status& why)> on_lost;
    /// The daemon cannot be reached for the moment.
    std::function<void(const absl::Status& why)> on_trouble;
    /// After Release(): nothing more will be heard.
    std::function<void()> on_released;
  };

  enum class Kind {
    kRun,     ///< As the spec says.
    kFollow,  ///< One that runs already and has the spec's id, from its beginning.
  };

  /// `daemon.target` is one of `targets` each time, which is not empty.
  RemoteSession(EventLoop& loop, DaemonCall::Options daemon, std::vector<std::string> targets,
                Kind kind, v1::SessionSpec spec, Hooks hooks);
  ~RemoteSession();
  RemoteSession(const RemoteSession&) = delete;
  RemoteSession& operator=(const RemoteSession&) = delete;

  void Start();
  /// The daemon is to end it, if it still runs, and its output is not wanted any more.
  void Release();
  /// Nobody follows it any more; what becomes of it is the daemon's business. With a short wait.
  void Leave();
  /// False, and nothing happens, while it does not run or its daemon cannot be reached.
  bool Signal(int signal);
  void Resume();
  /// The daemon has said that it runs, and nobody that it has ended.
  bool is_running() const { return state_ == State::kRunning; }
  /// The daemon has answered the present call.
  bool is_reached() const { return is_answered_; }
  /// No hook will be called any more.
  bool is_over() const { return state_ == State::kOver; }

 private:
  enum class State { kDialing, kRunning, kOver };
  struct Stream {
    LineFormat lines = LineFormat::Plain();
    /// What the reader had no room for.
    std::string pending;
    uint64_t received = 0;
    uint64_t acknowledged = 0;

    uint64_t shown() const { return received - pending.size(); }
  };

  void Dial();
  void OnMessage(const v1::DaemonMessage& message);
  void OnOutput(const v1::Output& output);
  void OnCallEnd(const absl::Status& why);
  void Show();
  void ShowStream(size_t index);
  void Acknowledge();
  void SayDone();
  void EndIfAllShown();

  // Constant after construction.
  EventLoop& loop_;
  const DaemonCall::Options daemon_;
  const std::vector<std::string> targets_;
  const Kind kind_;
  const v1::SessionSpec spec_;
  const Hooks hooks_;

  // Owned by the loop thread.
  State state_ = State::kDialing;
  bool is_released_ = false;
  /// The daemon has answered the present call.
  bool is_answered_ = false;
  size_t dials_ = 0;
  MonoTime waiting_since_{};
  bool has_told_trouble_ = false;
  std::unique_ptr<DaemonCall> call_;
  EventLoop::TimerId redial_timer_ = 0;
  std::array<Stream, 2> streams_;
  std::optional<int> code_;
};

}  // namespace fsdprun
