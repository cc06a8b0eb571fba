#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/event_loop.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/head_coordinator.h"
#include "launcher/run/job_output.h"
#include "launcher/run/signals.h"
#include "launcher/run/ssh_connection.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// A job whose nodes' parts are started with ssh: the coordinator in this process, and an ssh to
/// each host, which starts this same program there (Note [What ssh is told]). Thread: the main
/// thread, which also runs the loop. All arguments must outlive it.
class SshLauncher {
 public:
  /// `arguments`: of this program, without its name.
  SshLauncher(const LaunchPlan& plan, const Environment& environment,
              std::vector<std::string> arguments);
  ~SshLauncher();
  SshLauncher(const SshLauncher&) = delete;
  SshLauncher& operator=(const SshLauncher&) = delete;

  /// Runs until the job is over and its parts have ended. Returns the exit code. Call once.
  int Run();

 private:
  struct Node {
    std::string name;
    AgentHost host;
    std::unique_ptr<SshConnection> connection;
    /// How often it was tried.
    int logins = 0;
    bool is_pausing = false;  // before the next login
    /// It had joined, and its agent was not connected when the job was decided.
    bool is_lost = false;
    /// Why it takes no part, or no part any more.
    std::string gone;
  };

  // Setup.
  absl::Status Start();
  void StartNext();
  void StartNode(Node& node);
  v1::SessionSpec SpecOf(const Node& node) const;

  // Events.
  void OnSignal(int signal);
  void OnFinish(const JobOutcome& outcome);
  void OnStep();
  void NoteWhoIsLost();
  void HangUpOnLostNodes();
  void CloseLostNodes();
  void OnHello(Node& node, const BuildInfo& build);
  void OnEnd(Node& node, int code);
  void LogInAgain(Node& node);
  void OnGone(Node& node, const std::string& why);
  void EndIfTooFewAreLeft();
  void Release(Node& node);
  void ReleaseAll();
  void KillAll();
  void StopIfAllAreOver();
  bool is_over() const { return outcome_.has_value() || !lost_reason_.empty(); }
  void ScheduleWaitNotice();
  std::string SilentHosts() const;
  int Finish();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const std::vector<std::string> arguments_;
  const Clocks clocks_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;
  HeadCoordinator head_;

  // Set by Start().
  std::string program_;
  std::vector<Node> nodes_;
  bool has_started_ = false;

  /// The next of nodes_ to be started.
  size_t next_ = 0;
  /// The coordinator knows the outcome, and waits for the nodes to leave.
  bool is_decided_ = false;
  std::optional<JobOutcome> outcome_;
  /// Why the job is over although the coordinator has not said so.
  std::string lost_reason_;
  /// Any of the nodes.
  bool has_gone_ = false;
  EventLoop::TimerId end_timer_ = 0;
  EventLoop::TimerId kill_timer_ = 0;
};

}  // namespace fsdprun
