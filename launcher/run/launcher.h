#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/local/file_thread.h"
#include "agent/local/local_agent.h"
#include "agent/local/worker_store.h"
#include "agent/node/node_machine.h"
#include "agent/rpc/coordinator_link.h"
#include "agent/rpc/grpc_link.h"
#include "base/event_loop.h"
#include "base/loop_gate.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/coordinator/job_machine.h"
#include "launcher/directory/directory.h"
#include "launcher/run/agent_events.h"
#include "launcher/run/coordinator_host.h"
#include "launcher/run/event_log.h"
#include "launcher/run/health_port.h"
#include "launcher/run/job_output.h"
#include "launcher/run/monitoring.h"
#include "launcher/run/node_monitor.h"
#include "launcher/run/place_search.h"
#include "launcher/run/restart_limit.h"
#include "launcher/run/signals.h"
#include "launcher/run/slurm_queue.h"
#include "launcher/standby/standby.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// One run of a launcher: the agent of this node, and the job's coordinator if it is hosted here.
/// Thread: the main thread, which also runs the loop. `plan` and `environment` must outlive it.
class Launcher {
 public:
  /// `arguments`: its own, for a standby; empty if there can be none.
  Launcher(CliProgram program, const LaunchPlan& plan, const Environment& environment,
           std::vector<std::string> arguments = {});
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Runs until the job, or this node's part of it, is over. Returns the exit code. Call once.
  int Run();

 private:
  void Print(absl::string_view text);

  // Setup.
  absl::Status Start();
  absl::Status FindFirst();
  absl::Status FindProgram();
  bool IsAlone() const;
  absl::Status OpenMonitoring();
  std::string Metrics();
  absl::Status OpenTimer(const std::string& left_behind);
  absl::Status OpenLink();
  void MakeHost();
  bool CanHaveStandby() const;
  void MakeStandby(CoordinatorHost::Hooks* hooks);
  absl::Status MakeStore();
  absl::StatusOr<std::unique_ptr<WorkerStore>> OpenStore();
  Duration ConnectTimeout() const;
  std::string NodeName() const;
  NodeSpec MakeNodeSpec() const;
  LocalAgent::Options MakeAgentOptions() const;
  void WatchAgent(LocalAgent::Hooks* hooks);
  void OpenEventLog();
  void RecordNews(CoordinatorHost::Hooks* hooks);
  void WarnOfOtherTerms(const node::Event& event);
  void TellIfLeftOut(const node::Event& event);
  void NoteRejection(const node::Event& event);
  void MakeAgent();
  /// Of an agent that was killed, in whose place this one goes on.
  struct LeftBehind {
    AttachedKeeper keeper;
    AgentMemo memo;
  };
  std::optional<LeftBehind> FindLeftBehind() const;

  // Events.
  void RestartAgent();
  void OnRunDirs(const absl::Status& status);
  static std::string StoppedBySignal(int signal);
  void OnSignal(int signal);
  void OnForwardedSignal(int signal);
  void OnCoordinatorStep();
  void OnAgentExit(int code, const std::string& message);
  void OnLocalAgentExit();
  void StopWhenDone();

  // Where this launcher takes part: launcher_place.cc.
  void StepSearch(place::Event event);
  place::Facts PlaceFacts() const;
  place::AgentEnd EndOfAgent() const;
  bool LooksElsewhere();
  void OnDirectory(FileThread::Closure task, FileThread::Closure then);
  void Execute(const place::Ask&);
  void Execute(const place::Find&);
  void Execute(const place::FindAt& find);
  void OnFound(absl::StatusOr<Place> place);
  void Execute(const place::LookAgain&);
  void OnFoundAgain(absl::StatusOr<Whereabouts> where);
  void Execute(place::Redirect& redirect);
  bool IsPresent(const Place& place) const;
  void Execute(place::MoveTo& move);
  void MoveTo(Place place);
  void Execute(const place::GiveUpClaim&);
  void Execute(const place::Confirmed& confirmed);
  void Execute(const place::Unknown& unknown);
  void Execute(const place::Suspend&);
  void Execute(const place::Replaced& replaced);
  void Execute(const place::TellOfOther& tell);
  void Execute(const place::End& end);
  // The same for a host at an endpoint that several jobs share: launcher_endpoint.cc.
  void TendPlace();
  void OnTended(Tended tended);
  void OnOtherHost(place::OtherHost other);

  // While waiting for others, and for workers that are to end.
  void ScheduleWaitNotice();
  void PrintWaitNotice();
  void TrackStop();
  void ScheduleStopNotice();
  std::optional<job::StopStatus> StopInProgress() const;

  // Shutdown.
  int EndWithoutStart(const absl::Status& why);
  int Finish();
  void ReportOwnFailure();
  std::string WhyNotToTheEnd() const;
  bool IsToldElsewhere() const;
  bool LeavesJob() const;
  int ExitCode() const;
  int OwnFailureCode() const;
  FileThread::Closure GivingUp(bool closes) const;
  void LeaveDirectory();

  // Constant after construction.
  const CliProgram program_;
  const LaunchPlan& plan_;
  const Environment& environment_;
  const Clocks clocks_;
  const std::vector<std::string> arguments_;

  /// The soft limit of open descriptors that this process was started with.
  const uint64_t descriptor_limit_;
  EventLoop loop_;
  /// For the directory's threads.
  LoopGate gate_{loop_};
  SignalWatcher signals_;
  JobOutput output_;

  // Set by Start().
  std::string python_;
  /// Null: nothing is encrypted.
  std::shared_ptr<const Tls> tls_;
  /// Why the program cannot be run here; empty if it can.
  std::string cannot_run_;
  std::vector<std::vector<int>> worker_cpus_;
  std::string keeper_path_;
  std::string run_id_;
  /// Shared with the thread that uses it, which may hang.
  std::shared_ptr<Directory> directory_;
  FileThread directory_thread_{loop_};
  /// Ends what the directory waits for; shared with the same thread.
  const std::shared_ptr<std::atomic<bool>> is_search_over_ =
      std::make_shared<std::atomic<bool>>(false);
  PlaceSearch search_;
  EventLoop::TimerId search_timer_ = 0;
  bool is_leaving_ = false;
  Place place_;
  int times_found_again_ = 0;
  std::unique_ptr<CoordinatorHost> host_;
  /// Of the present host, which is not alone; see Note [A standby].
  std::unique_ptr<Standby> standby_;
  /// Of who hosts the coordinator of a job that Slurm has started; else null.
  std::unique_ptr<SlurmQueue> queue_;
  std::unique_ptr<GrpcLink> grpc_link_;
  CoordinatorLink* link_ = nullptr;
  std::unique_ptr<WorkerStore> store_;
  /// The store's server on the coordinator's port; null if that is not here.
  StoreThread* port_server_ = nullptr;
  EventLoop::TimerId tend_timer_ = 0;
  bool is_tending_ = false;
  /// The latest warning that the coordinator was given other options.
  std::string warned_terms_;
  /// Why this node was said to be left out of the job; empty: it was not.
  std::string told_left_out_;
  std::unique_ptr<FileTimer> file_timer_;
  NodeMonitor node_monitor_;
  std::unique_ptr<HealthPort> health_port_;
  /// Of the present agent; null if nobody wants them.
  std::unique_ptr<AgentEvents> events_;
  /// In the present log directory; null if the user has named none.
  std::unique_ptr<EventLog> event_log_;
  ProgressSigns progress_signs_;
  std::unique_ptr<LocalAgent> agent_;
  /// The next agent's, if it goes on for one that was killed; 0: a new one.
  Incarnation incarnation_;
  /// By the coordinator, which does not want it back.
  bool was_turned_away_ = false;
  RestartLimit restarts_{MonoNow()};

  /// Since when this launcher, or this incarnation of it, has been looking for the coordinator.
  MonoTime waiting_since_ = MonoNow();
  /// The stop that a notice was last scheduled for: its generation, and whether an operator has
  /// asked for it.
  std::pair<Generation, bool> noticed_stop_{};
  bool is_ended_by_signal_ = false;
  /// The first signal that ends this launcher; 0: none.
  int own_signal_ = 0;
  /// The local agent has ended, and the job cannot go on; there is no outcome.
  bool is_job_lost_ = false;
  std::optional<JobOutcome> outcome_;
  std::optional<int> agent_exit_;
  std::string agent_message_;
};

}  // namespace fsdprun
