#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/host_lookups.h"
#include "launcher/run/remote_job.h"
#include "launcher/run/remote_session.h"

namespace fsdprun {

/// A job whose nodes are run by daemons: the coordinator in this process, and a session at each
/// daemon, where this same command line is a node's part. Thread: the main thread, which also runs
/// the loop. All arguments must outlive it.
class HostsLauncher : private RemoteJob::Parts {
 public:
  /// `arguments`: of this program, without its name. `on_started`: called once, when the workers
  /// have been told to start; may be null.
  HostsLauncher(const LaunchPlan& plan, const Environment& environment,
                std::vector<std::string> arguments, std::function<void()> on_started = nullptr);
  ~HostsLauncher();
  HostsLauncher(const HostsLauncher&) = delete;
  HostsLauncher& operator=(const HostsLauncher&) = delete;

  /// Runs until the job is over and its sessions have ended. Returns the exit code. Call once.
  int Run() { return job_.Run(); }

 private:
  /// Of the job, at one daemon.
  struct Part {
    /// Its node.
    size_t index = 0;
    /// Once they are found.
    std::vector<std::string> addresses;
    std::unique_ptr<RemoteSession> session;
    /// Some of it, at its daemon, as the code of its session says.
    bool is_output_lost = false;
    /// How often it was ordered anew after a loss, of plan_.max_restarts.
    int returns = 0;
    /// Before the next order.
    Duration pause{};
    bool has_told_return = false;

    bool has_session() const { return session != nullptr && !session->is_over(); }
  };

  // RemoteJob::Parts
  absl::StatusOr<std::string> Prepare() override;
  void StartAll() override;
  void OnStep() override;
  void Resume() override;
  void OnOutcome() override;
  void Release(size_t node) override;
  void ReleaseAll() override;
  void LeaveAll() override;
  bool IsOver(size_t node) const override { return !parts_[node].has_session(); }
  std::string HowLeft() const override { return "leaving them to their daemons"; }
  bool TellOfLostOutput() override;

  void OnFound(Part& part, const HostLookups::Addresses& addresses);
  void StartSession(Part& part);
  RemoteSession::Hooks HooksOf(Part& part);
  void OnRefused(Part& part, const absl::Status& why);
  void OnPartOver(Part& part, const std::string& why);
  void OrderAnew(Part& part);
  void TellWhoMayStillAnswer();
  void ReleaseLost();
  const RemoteJob::Node& NodeOf(const Part& part) const { return job_.nodes()[part.index]; }

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const std::vector<std::string> arguments_;
  std::function<void()> on_started_;

  RemoteJob job_;
  HostLookups lookups_{job_.loop()};

  // Set by Prepare().
  std::string token_;
  std::vector<Part> parts_;
};

}  // namespace fsdprun
