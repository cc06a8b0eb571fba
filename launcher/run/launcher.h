#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/local/local_agent.h"
#include "agent/local/worker_store.h"
#include "agent/node/cluster_types.h"
#include "agent/node/node_machine.h"
#include "agent/rpc/coordinator_link.h"
#include "agent/rpc/grpc_link.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/report/console.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/meeting.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// One launcher's life: the agent of this node, and the job's coordinator if this is the place for
/// it. Thread: the main thread, which runs the loop that everything here is used on. `plan` and
/// `environment` must outlive it.
class Launcher {
 public:
  Launcher(CliProgram program, const LaunchPlan& plan, const Environment& environment);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Until the job, or this node's part of it, is over. Returns the exit code. Once.
  int Run();

 private:
  void Say(absl::string_view text);

  // Setting up.
  absl::Status Start();
  absl::Status OpenLink();
  JobSpec MakeJobSpec() const;
  void MakeHost();
  void MakeStore();
  NodeSpec MakeNodeSpec() const;
  LocalAgent::Options MakeAgentOptions() const;
  void MakeAgent();

  // What happens.
  void BeginNextLife();
  void OnSignal(int signal);
  void OnCoordinatorStep();
  void OnAgentExit(int code, const std::string& message);
  void OnOwnAgentGone();
  void StopWhenDone();

  // What is shown meanwhile.
  void ResumeOutput();
  void ShowProgress(const Progress& progress);
  void ScheduleNotice();
  void GiveNotice();
  void NotePhase();

  // The end.
  int Finish();
  int ExitCode() const;
  void RemoveRunDir();

  // Constant after construction.
  const CliProgram program_;
  const LaunchPlan& plan_;
  const Environment& environment_;

  EventLoop loop_;
  SignalWatcher signals_;
  Console console_;

  // Set by Start().
  std::string python_;
  std::string keeper_path_;
  std::string run_id_;
  std::string run_dir_;
  /// Of the lives that a lone agent has had before.
  std::vector<std::string> earlier_run_dirs_;
  Meeting meeting_;
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<GrpcLink> grpc_link_;
  CoordinatorLink* link_ = nullptr;
  std::unique_ptr<WorkerStore> store_;
  std::unique_ptr<LocalAgent> agent_;

  /// Since when nodes, or the coordinator, are waited for.
  MonoTime waiting_since_ = MonoNow();
  bool is_gathering_ = false;
  bool is_ended_by_signal_ = false;
  /// The own agent has ended, and with it a job that has no outcome.
  bool is_job_lost_ = false;
  std::optional<JobOutcome> outcome_;
  std::optional<int> agent_exit_;
  std::string agent_message_;
};

}  // namespace fsdprun
