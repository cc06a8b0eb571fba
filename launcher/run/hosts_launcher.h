#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/head_coordinator.h"
#include "launcher/run/job_output.h"
#include "launcher/run/remote_session.h"
#include "launcher/run/signals.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// A job whose nodes are run by daemons: the coordinator in this process, and a session at each
/// daemon, where this same command line is a node's part. Thread: the main thread, which also runs
/// the loop. All arguments must outlive it.
class HostsLauncher {
 public:
  /// `arguments`: of this program, without its name. `on_started`: called once, when the workers
  /// have been told to start; may be null.
  HostsLauncher(const LaunchPlan& plan, const Environment& environment,
                std::vector<std::string> arguments, std::function<void()> on_started = nullptr);
  ~HostsLauncher();
  HostsLauncher(const HostsLauncher&) = delete;
  HostsLauncher& operator=(const HostsLauncher&) = delete;

  /// Runs until the job is over and its sessions have ended. Returns the exit code. Call once.
  int Run();

 private:
  struct Node {
    std::string name;
    AgentHost host;
    absl::StatusOr<std::vector<std::string>> addresses = absl::UnknownError("not looked up");
    std::unique_ptr<RemoteSession> session;
    /// Why it takes no part, or no part any more.
    std::string gone;
    /// Its agent was not connected when the job was decided.
    bool is_lost = false;
    /// Some of it, at its daemon, as the code of its session says.
    bool is_output_lost = false;
    /// How often its part was ordered anew after a loss, of plan_.max_restarts.
    int returns = 0;
    /// Before the next order.
    Duration pause{};
    bool has_told_return = false;
  };

  // Setup.
  absl::Status Start();
  void LookUpHosts();
  void StartSessions();
  void StartSession(Node& node);
  v1::SessionSpec SpecOf(const Node& node) const;

  // Events.
  void OnSignal(int signal);
  void OnFinish(const JobOutcome& outcome);
  void TellWhoMayStillAnswer();
  void ReleaseLostNodes();
  void OnStep();
  void NoteWhoIsLost();
  void OnRefused(Node& node, const absl::Status& why);
  void OnPartOver(Node& node, const std::string& why);
  void OrderAnew(Node& node);
  void OnGone(Node& node, const std::string& why);
  void EndIfTooFewAreLeft();
  bool IsOver() const { return is_decided_ || outcome_.has_value() || !lost_reason_.empty(); }
  void ReleaseAll();
  void LeaveAll();
  void StopIfAllAreOver();
  void ScheduleWaitNotice();
  int Finish();
  bool TellOfLostOutput();

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const std::vector<std::string> arguments_;
  std::function<void()> on_started_;
  const Clocks clocks_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;
  HeadCoordinator head_;
  FileThread lookups_{loop_};

  // Set by Start().
  std::string token_;
  std::vector<Node> nodes_;

  /// The coordinator knows the outcome, and waits for the nodes to leave.
  bool is_decided_ = false;
  std::optional<JobOutcome> outcome_;
  /// Why the job is over although the coordinator has not said so.
  std::string lost_reason_;
  EventLoop::TimerId end_timer_ = 0;
  bool has_started_ = false;
  /// Any of the nodes.
  bool has_gone_ = false;
};

}  // namespace fsdprun
