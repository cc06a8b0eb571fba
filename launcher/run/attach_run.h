#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/job_output.h"
#include "launcher/run/remote_session.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// `fsdprun --detach`, which has a job's launcher run at a daemon and ends once the job has
/// started, and `fsdprun --attach`, which follows such a job to its end. Thread: the main thread,
/// which also runs the loop. All arguments must outlive it.
class AttachRun {
 public:
  /// `arguments`: of this program, without its name.
  AttachRun(const LaunchPlan& plan, const Environment& environment,
            std::vector<std::string> arguments);
  ~AttachRun();
  AttachRun(const AttachRun&) = delete;
  AttachRun& operator=(const AttachRun&) = delete;

  /// Returns the exit code: the job's, once it has ended; 128 + n if signal n has ended only the
  /// attachment. Call once.
  int Run();

 private:
  absl::Status Start();
  absl::Status Find();
  v1::SessionSpec Spec() const;
  RemoteSession::Hooks MakeHooks();
  void OnSignal(int signal);
  void EndInterrupted(const std::string& text);
  std::string JobId() const;
  void OnStarted();
  void End(int code);
  void Fail(const std::string& why);

  // Constant after construction.
  const LaunchPlan& plan_;
  const Environment& environment_;
  const std::vector<std::string> arguments_;
  const HostPort daemon_;

  EventLoop loop_;
  SignalWatcher signals_;
  JobOutput output_;
  FileThread lookup_{loop_};

  // Set by Start().
  absl::StatusOr<std::vector<std::string>> addresses_ = absl::CancelledError("interrupted");
  v1::SessionSpec spec_;
  std::unique_ptr<RemoteSession> session_;
  int code_ = 1;
  /// The last that has come; 0: none.
  int signal_ = 0;
};

}  // namespace fsdprun
