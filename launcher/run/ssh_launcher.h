#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/remote_job.h"
#include "launcher/run/ssh_connection.h"

namespace fsdprun {

/// A job whose nodes' parts are started with ssh: the coordinator in this process, and an ssh to
/// each host, which starts this same program there (Note [What ssh is told]). Thread: the main
/// thread, which also runs the loop. All arguments must outlive it.
class SshLauncher : private RemoteJob::Parts {
 public:
  /// `arguments`: of this program, without its name.
  SshLauncher(const LaunchPlan& plan, const Environment& environment,
              std::vector<std::string> arguments);
  ~SshLauncher();
  SshLauncher(const SshLauncher&) = delete;
  SshLauncher& operator=(const SshLauncher&) = delete;

  /// Runs until the job is over and its parts have ended. Returns the exit code. Call once.
  int Run() { return job_.Run(); }

 private:
  /// Of the job, at one host.
  struct Part {
    /// Its node.
    size_t index = 0;
    std::unique_ptr<SshConnection> connection;
    /// How often it was tried.
    int logins = 0;
    bool is_pausing = false;  // before the next login

    bool is_connected() const { return connection != nullptr && connection->is_open(); }
    bool has_said_hello() const { return connection != nullptr && connection->has_said_hello(); }
  };

  // RemoteJob::Parts
  absl::StatusOr<std::string> Prepare() override;
  void StartAll() override;
  void Resume() override;
  void OnOutcome() override;
  void Release(size_t node) override;
  void ReleaseAll() override;
  void LeaveAll() override { KillAll(); }
  bool IsOver(size_t node) const override { return !parts_[node].is_connected(); }
  std::string HowLeft() const override { return "closing the connections to them"; }
  std::string WaitDetails() const override;

  void StartNext();
  void StartPart(Part& part);
  void OnHello(const Part& part, const BuildInfo& build);
  void OnEnd(Part& part, int code);
  void LogInAgain(Part& part);
  void HangUpOnLost();
  void CloseLost();
  void KillAll();
  const RemoteJob::Node& NodeOf(const Part& part) const { return job_.nodes()[part.index]; }

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const std::vector<std::string> arguments_;

  RemoteJob job_;

  // Set by Prepare().
  std::string program_;
  std::vector<Part> parts_;

  /// The next of parts_ to be started.
  size_t next_ = 0;
  EventLoop::TimerId kill_timer_ = 0;
};

}  // namespace fsdprun
