#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/local/agent_memo.h"
#include "agent/local/file_thread.h"
#include "agent/local/file_timer.h"
#include "agent/local/filtered_output.h"
#include "agent/local/log_paths.h"
#include "agent/local/node_desk.h"
#include "agent/local/output_pump.h"
#include "agent/local/worker_store.h"
#include "agent/local/worker_vitals.h"
#include "agent/node/node_machine.h"
#include "agent/output/output_options.h"
#include "agent/process/error_file_reader.h"
#include "agent/process/keeper_client.h"
#include "agent/process/orphans.h"
#include "agent/rpc/coordinator_link.h"
#include "base/event_loop.h"
#include "base/machine_driver.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// One node's agent: executes NodeMachine's actions with a keeper, log files, a store and a link,
/// and feeds the resulting events back. Makes no decisions itself. Thread: loop thread only, hooks
/// too.
class LocalAgent : private MachineDriver<NodeMachine>::Executor {
 public:
  struct Options {
    NodeSpec spec;
    std::string keeper_path;
    /// Environment that every worker gets before its own variables are set.
    std::map<std::string, std::string> base_environment;
    /// The command line of the worker with this local rank.
    std::function<std::vector<std::string>(int local_rank)> command;
    std::string run_id;
    RunDirs dirs;
    OutputOptions output;
    /// FSDPRUN_PROGRESS_VIEW of the workers.
    bool draws_progress = false;
    /// The keeper ends the workers when this process was stopped for so long, or for what follows
    /// from the coordinator's node lease if that is another; zero: never.
    Duration keeper_lease{};
    /// Workers' soft limit of open descriptors; 0: this process's.
    uint64_t descriptor_limit = 0;
    /// Where another agent of this session finds the keeper; no path: it ends with this process.
    KeeperSocket keeper_socket;
    /// What to do when the coordinator does not accept the job's token.
    std::string token_advice;
    /// For TORCHELASTIC_SIGNALS_TO_HANDLE.
    std::string handled_signals;
    /// See WorkerSettings.
    bool has_virtual_local_rank = false;
    bool uses_agent_store = true;
    /// The watchdog, which outlives the agent; null: none.
    FileTimer* file_timer = nullptr;
    int omp_threads = 0;
    /// Set if this agent has one of its node's workers, and others the rest: LOCAL_RANK and
    /// LOCAL_WORLD_SIZE.
    std::optional<std::pair<int, int>> local_place;
    /// The CPUs of each worker, by local rank; empty: this process's.
    std::vector<std::vector<int>> worker_cpus;
    /// Which worker reads this process's standard input.
    std::function<bool(int local_rank)> reads_stdin = [](int) { return true; };
    /// The signal that stops a worker goes to all its processes, not to it alone.
    bool stops_groups = true;
  };
  struct Hooks {
    /// Rank 0's latest progress record, if rank 0 runs on this node.
    std::function<void(const Progress&)> on_progress;
    /// Every line for standard output or error; see OutputPump.
    OutputPump::Sink sink;
    /// Bytes of what was passed to `sink`: all, and those that are where they are kept; null: they
    /// are there at once.
    struct Kept {
      uint64_t passed = 0;
      uint64_t kept = 0;
    };
    std::function<Kept(keeper::Stream)> kept_output;
    /// The agent has ended: no process is left, or what is left is blocked in the kernel.
    /// Afterwards only `sink` may be called, by ResumeOutput() and DrainOutput().
    std::function<void(int code, const std::string& message)> on_exit;
    /// Every event that the machine takes and every action that it decides on, for those who only
    /// watch.
    std::function<void(const node::Event&)> on_event;
    std::function<void(const node::Action&)> on_action;
    /// What has happened.
    std::function<void(const node::News&)> on_news;
    /// A worker has set or released a timer of the watchdog; one has expired.
    std::function<void()> on_timer_request;
    std::function<void(const ExpiredTimer&)> on_timer_expired;
  };

  LocalAgent(EventLoop& loop, Options options, Hooks hooks, CoordinatorLink& link,
             WorkerStore& store);
  ~LocalAgent() override;
  LocalAgent(const LocalAgent&) = delete;
  LocalAgent& operator=(const LocalAgent&) = delete;

  /// Starts the keeper and makes the first connection attempt.
  void Start();
  /// In place of Start(): goes on for an agent that is gone. See Note [Adopting workers]. The
  /// options have its incarnation and directories.
  void Resume(AttachedKeeper keeper, const AgentMemo& memo);
  /// An operator's signal for this agent alone (see node::OperatorSignal).
  void OperatorSignal(int signal);
  /// The link leads to another place from now on; `endpoint` is for people.
  void CoordinatorMoved(const std::string& endpoint);
  /// Passes a signal on to the workers themselves, not to what they have started, after a notice on
  /// their control sockets. The job goes on. False if no worker runs.
  bool ForwardSignal(int signal);
  /// The sink has room again. True if everything but unterminated last lines has been passed to it.
  bool ResumeOutput();
  /// Waits until a piece of a log file that is being read is there; false if none is being read.
  /// For when the loop has ended.
  bool AwaitOutput(MonoTime deadline);
  /// The file system of the logs does not answer.
  bool OutputHangs() const { return output_.hangs(); }
  /// Passes the output that is still in log files to the sink even if it has no room; see
  /// OutputPump::Drain.
  void DrainOutput();
  /// See FilteredOutput; for when the loop has ended.
  bool AwaitFilteredOutput(MonoTime deadline);
  void FinishFilteredOutput();

  const NodeMachine& machine() const { return machine_; }
  /// See OutputPump::dropped_bytes().
  uint64_t dropped_output_bytes() const { return output_.dropped_bytes(); }
  /// Streams of this world's workers whose log files cannot be written.
  size_t lost_logs() const { return lost_logs_.size(); }
  /// How the workers of the present world are; see WorkerVitals::Read().
  v1::NodeVitals ReadVitals() { return vitals_.Read(MonoNow()); }
  /// The keeper has been started, and lives.
  bool has_keeper() const { return keeper_ != nullptr && keeper_->is_alive(); }
  /// The coordinator has admitted this agent at least once.
  bool was_admitted() const { return was_admitted_; }
  /// The coordinator was lost in the middle of the job: it admitted this agent and never released
  /// it.
  bool has_lost_coordinator() const { return was_admitted_ && !was_released_; }
  /// The last error with which the link broke or could not be opened.
  const absl::Status& last_link_error() const { return last_link_error_; }
  /// The process id of the keeper, or 0.
  pid_t keeper_pid() const { return keeper_ != nullptr ? keeper_->pid() : 0; }

 private:
  void Feed(node::Event event) { driver_.Feed(std::move(event)); }
  // The machine's executor.
  MonoTime Now() override { return MonoNow(); }
  void Persist(const NodeRecord& record) override;
  void WakeAt(MonoTime at) override;
  void Send(FromAgent& message) override { link_.Send(message); }
  void Execute(node::Action& action) override;
  void Hear(const node::News& news) override;
  void OnEvent(const node::Event& event) override;
  void Execute(const node::StartKeeper& start);
  void Execute(const node::ReconnectStream& reconnect);
  void Execute(const node::PrepareNode& prepare);
  void Execute(const node::SpawnWorkers& spawn);
  void Execute(const node::AdoptWorkers& adopt);
  void Execute(const node::SignalWorkers& signal);
  void Execute(const node::NotifyWorkers& notify) { ForwardSignal(notify.signal); }
  void Execute(const node::KillWorkers& kill);
  void Execute(const node::KillOrphans& kill);
  void Execute(const node::Exit& exit);

  void Listen();
  void LeaveMemo();
  WorkerSpec SpecOf(int local_rank);
  void BeginWorkers(const RankAssignment& assignment);
  void OnShown(int local_rank, keeper::Stream stream, uint64_t offset);
  void NoteKept();
  void AdoptLogWriter(pid_t pid);
  void OpenKeeper();
  void FollowLease(Duration node_lease);
  KeeperCallbacks MakeKeeperCallbacks();
  void OnLinkLost(const LinkLoss& loss);
  void WarnOfSilence();
  std::map<std::string, std::string> EnvironmentOf(int local_rank);
  void OnSpawned(const keeper::SpawnedReport& report);
  void OnSpawnFailed(int local_rank, const std::string& what);
  void OnExited(const keeper::ExitedReport& report);
  /// A worker whose exit has not been told yet.
  struct ExitedWorker {
    keeper::ExitedReport report;
    Generation generation;
    /// Where it has written that, and where that is kept.
    std::string error_file;
    std::string kept_error_file;
    std::string log_path;
    /// Why the watchdog has signalled it; empty: it has not.
    std::string timer_error;
  };
  /// What became of its error file.
  struct ErrorFile {
    ErrorFileResult result;
    MonoTime read_at;
  };
  void OnErrorFile(uint64_t turn, const ExitedWorker& worker, const ErrorFile& file);
  /// Of the workers that were started last: all of a generation have the generation's number. See
  /// Note [Lives].
  uint64_t life() const { return assignment_.generation.value(); }
  static node::Event MakeReaped(const ExitedWorker& worker, const ErrorFile& file);
  /// Feeds an event that comes from the keeper, after those that came before it.
  void FeedInTurn(std::function<node::Event()> event);
  void FeedTurns();
  void OnControlRecord(const keeper::ControlRecordReport& report);
  NodeDesk::Hooks DeskHooks();
  std::vector<NodeDesk::Worker> DescribeWorkers();
  int AskToSave();
  void OnTimerExpired(const ExpiredTimer& timer);

  // Output.
  void MakeAttemptFiles(std::function<void()> then);
  void GetPages(WorkerPages (*get)(const RunDirs& dirs, Generation generation, int workers));
  std::string VitalsFileOf(int local_rank) const;
  /// Says what becomes of a stream of the worker that is about to start; returns the file's path.
  std::string FollowStream(int local_rank, keeper::Stream stream, const StreamPlan& plan);
  void OnLogGrew(const keeper::LogGrewReport& report);
  void OnLogData(const keeper::LogDataReport& report);
  void OnLogDegraded(const keeper::LogDegradedReport& report);
  std::string LogPathOf(int local_rank) const;
  void WarnOfLogs(const std::string& what);
  /// Ends in AllWorkersGone for the generation of the last call.
  void SweepOrphans(Generation generation);
  void SweepOnce();
  void FinishExit();
  /// Runs `action` after `delay`, unless the agent has ended by then.
  void RunAfter(Duration delay, std::function<void()> action);

  // Constant after construction.
  EventLoop& loop_;
  const Options options_;
  const Hooks hooks_;
  CoordinatorLink& link_;
  WorkerStore& store_;

  // Owned by the loop thread.
  NodeMachine machine_;
  MachineDriver<NodeMachine> driver_{machine_, *this};
  bool has_ended_ = false;
  bool was_admitted_ = false;
  /// Released or rejected by the coordinator, or ended by an operator.
  bool was_released_ = false;
  bool has_warned_of_silence_ = false;
  bool has_warned_of_omp_ = false;
  bool has_warned_of_logs_ = false;
  bool has_warned_of_vitals_ = false;
  /// Children that this process already had when the agent started; never killed.
  std::set<pid_t> foreign_children_;
  /// Log writers that their keeper has left behind, with what tells that they have ended.
  std::map<pid_t, UniqueFd> log_writers_;
  absl::Status last_link_error_;
  EventLoop::TimerId wake_timer_ = 0;
  Duration keeper_lease_ = options_.keeper_lease;
  std::unique_ptr<KeeperClient> keeper_;
  /// Workers of an adopted keeper that was lost.
  Strangers strangers_;
  /// For the next agent.
  std::optional<NodeRecord> record_;
  /// Makes an attempt's folders: not behind a log of the one before that is slow to read.
  FileThread attempt_files_;
  WorkerVitals vitals_;
  /// Reads the workers' log and error files.
  FileThread files_;
  OutputPump output_;
  /// Was passed on, and may not be kept yet.
  struct Shown {
    int local_rank;
    uint64_t offset;
    uint64_t life;
    /// It is when so much is.
    uint64_t passed;
  };
  std::array<std::deque<Shown>, 2> shown_;
  EventLoop::TimerId shown_timer_ = 0;
  /// Set if the user wants filtered files.
  std::unique_ptr<FilteredOutput> filtered_;
  /// The keeper's events by number, in order; an empty one waits for an error file.
  std::map<uint64_t, std::function<node::Event()>> turns_;
  uint64_t next_turn_ = 1;

  // The generation whose workers were last prepared or started.
  RankAssignment assignment_;
  std::map<int, int64_t> spawned_pids_;
  /// Why the watchdog has signalled a process.
  std::map<int64_t, std::string> timer_errors_;
  /// Those that have ended.
  std::set<int> ended_ranks_;
  bool spawn_is_answered_ = true;
  /// Streams whose log files have some output.
  std::set<std::pair<int, keeper::Stream>> has_logged_;
  /// Streams that have nothing in their log files, because those cannot be written.
  std::set<std::pair<int, keeper::Stream>> lost_logs_;

  NodeDesk desk_;

  /// Set while orphans are being killed.
  std::optional<Generation> swept_generation_;
  /// Set between the decision to end and the end of the keeper.
  std::optional<node::Exit> exit_;

  const std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

}  // namespace fsdprun
