#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/types.h>
#include <time.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/process/keeper_protocol.h"
#include "agent/process/lease.h"
#include "agent/process/life_record.h"
#include "agent/process/log_writer.h"
#include "agent/process/process_scan.h"
#include "agent/process/spawn.h"
#include "agent/process/worker_streams.h"

namespace fsdprun::keeper {

/// Converts waitid()'s result: exit code, or signal and whether the child dumped core.
void DecodeWaitStatus(const siginfo_t& info, ExitedReport& report);

/// The parent of a node's workers: starts them, reaps them, has their output stored, and outlives
/// its agent only for as long as it takes to kill them all. One thread, one poll loop, which
/// touches no file system but /proc (see Note [Log writer]).
///
/// Note [Who belongs to a worker]
/// A worker leads its own session. When it dies, every process of that session and all their
/// descendants are killed. The dead leader is reaped only after its session is empty: until then
/// the kernel cannot reuse the session id, so no unrelated process can match. A descendant that
/// left the session and lost its parent is reparented to the keeper (a subreaper) and can no longer
/// be attributed to one worker; it is killed when no worker is left, before AllGone.
class Keeper {
 public:
  /// Where another agent may come in the place of one that is gone; see Note [A keeper that waits
  /// for its agent].
  struct NamedSocket {
    /// It listens, and does not block; -1: nobody is waited for.
    int listener = -1;
    int64_t grace_ns = 0;
  };

  /// `agent_fd`: connected stream socket; owned from here on, as is the listener.
  explicit Keeper(int agent_fd, const NamedSocket& named);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Serves until the agent shuts it down or is gone, and no process of the job is alive. Returns
  /// the exit status: 0, or 1 after a command that could not be decoded (reported on standard
  /// error).
  int Run();
  /// It ended for want of an agent, without an order to shut down.
  bool was_abandoned() const { return was_abandoned_; }
  /// The pidfd of the last agent that has left a memo, for the caller to close; -1: there is none.
  int TakeOwner() { return std::exchange(owner_, -1); }

 private:
  enum class Phase {
    kOpening,   ///< waits for its log files
    kStarting,  ///< cloned, exec has not succeeded yet
    kRunning,
    kDead,      ///< exit status known, output being collected
    kReported,  ///< reported; reaped once its session is empty and its logs are settled
    kFailed,    ///< never ran; reaped as soon as it has exited, if it was cloned at all
  };
  struct Worker {
    int local_rank = 0;
    uint64_t life = 0;
    pid_t pid = -1;
    int pidfd = -1;
    int failure_pipe = -1;
    Phase phase = Phase::kStarting;
    /// All its threads have, and it has not been reaped.
    bool has_ended = false;
    /// Set by KillAll; workers started later are not touched by its sweep.
    bool kill_requested = false;
    /// Bytes of output read after the death; bounded, so that a surviving writer cannot delay the
    /// report forever.
    size_t bytes_after_death = 0;
    std::array<LogStream, 2> logs{{LogStream(0), LogStream(kStderrTailBytes)}};
    ControlSocket control;
    std::unique_ptr<SpawnPlan> plan;
    /// Until the clone.
    ChildFds child_fds;
    /// Signals that came before the clone.
    std::vector<SignalCommand> early_signals;
    ExitedReport exit;

    ~Worker();
    void CloseChildFds();
    /// Of a command, where 0 is any.
    bool IsOfLife(uint64_t which) const { return which == 0 || which == life; }
    bool IsAlive() const { return phase == Phase::kStarting || phase == Phase::kRunning; }
    bool IsOver() const { return !IsAlive() && phase != Phase::kOpening; }
    bool IsSettled() const { return logs[0].is_settled() && logs[1].is_settled(); }
    /// Its exit has been reported, but not all that became of its output.
    bool HasLateOutput() const {
      return !IsSettled() || logs[0].growth_pending || logs[1].growth_pending;
    }
  };
  static constexpr size_t kReadBytes = LogWriter::kMaxWriteBytes;
  /// What a pollfd belongs to.
  enum class Source {
    kAgent,
    kNamedSocket,
    kVisitor,
    kChildSignal,
    kLogWriter,
    kAbandonedLogWriter,
    kPidfd,
    kFailurePipe,
    kStdout,
    kStderr,
    kControl
  };
  /// Has connected to the named socket, and not said yet who it is.
  struct Visitor {
    int fd = -1;
    int64_t deadline_ns = 0;
    std::string said;
  };
  struct Polled {
    Source source;
    Worker* worker;
  };

  static int64_t NowNs(clockid_t clock);
  void FillPollSet();
  void AddPoll(int fd, short events, Source source, Worker* worker);
  int PollTimeoutMs() const;
  void HandlePoll(const Polled& polled, const pollfd& ready);

  // Agent.
  void ReceiveCommands();
  void ApplyCommands();
  void Apply(const SpawnCommand& command);
  void Apply(const SignalCommand& command);
  void Apply(const SignalProcessCommand& command);
  void Apply(const ControlLineCommand& command);
  void Apply(const KillAllCommand& command);
  void Apply(const ShutdownCommand& command);
  void Apply(const LeaseCommand& command);
  void Apply(const AttachCommand& command);
  void Apply(const MemoCommand& command);
  void Apply(const ShownCommand& command);
  void CheckAgent();
  void EndLease();
  static void Say(std::string_view line);
  void LoseAgent();
  void End();
  void Tell(const Report& report);
  void Flush();
  void AcceptVisitors();
  void HearVisitor(int fd);
  void Attach(int fd, const std::string& said);
  void Dismiss(int fd);
  int64_t VisitorDeadlineNs() const;
  /// The queue to the agent has room for output that cannot go to a log file.
  bool HasBulkRoom() const;

  // Workers.
  bool OpenStreams(Worker& worker, const SpawnCommand& command, SpawnFailedReport& failure);
  void Start(Worker& worker);
  void CancelStart(Worker& worker, int error, const char* attempted);
  void ReadFailurePipe(Worker& worker);
  void ReadLog(Worker& worker, int stream, bool needs_room = true);
  bool CanRead(const LogStream& log) const;
  void ReadControl(Worker& worker);
  void OnWorkerDeath(Worker& worker);
  void CollectOutput(Worker& worker, bool needs_room);
  void ReportWorker(Worker& worker);
  void ReportExit(Worker& worker);
  Worker* FindCurrent(int local_rank, uint64_t life = 0);

  // Logs.
  void BeginLogs(Worker& worker, const SpawnCommand& command);
  void OpenLog(Worker& worker, int stream);
  void EndLogs(Worker& worker);
  void ReceiveLogAnswers();
  void TakeLogAnswer(const LogWriter::Answer& answer);
  void SettleLog(Worker& worker, int stream, const LogWriter::Answer& answer);
  void DegradeLog(Worker& worker, int stream, int error, const std::string& why);
  void DegradeAllLogs(int error, const std::string& why);
  bool IsLogAwaited() const;
  int64_t LogEndNs() const;
  int64_t ReportDeadlineNs() const;
  void CheckLogWriter();

  // Killing and reaping.
  void Sweep();
  void MarkVictims();
  bool KillVictims();
  void ReapOrphans();
  void ReapWorkers();
  bool HasSession(pid_t leader) const;
  bool NeedsNoScan(pid_t pid) const;
  bool IsSpared(const ProcessInfo& process) const;
  bool IsWorkerPid(pid_t pid) const;
  bool IsOfWorker(pid_t pid);
  void SweepSoon();
  void ScheduleSweep(bool unfinished);

  /// -1: it is gone.
  int agent_fd_;
  NamedSocket named_;
  std::vector<Visitor> visitors_;
  /// While another agent is awaited; else never.
  int64_t await_until_ns_ = LogQueue::kNever;
  /// No visitor is taken until then; 0: one may be.
  int64_t accept_again_ns_ = 0;
  LifeRecord record_;
  int owner_ = -1;
  /// It is the present agent.
  bool is_owner_known_ = false;
  int child_signal_fd_ = -1;
  const pid_t self_;
  bool is_ending_ = false;
  bool was_abandoned_ = false;
  bool all_gone_pending_ = false;
  /// The latest that an order was about.
  uint64_t life_ = 0;
  int exit_status_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  LogWriter log_writer_;
  Lease lease_;

  std::string incoming_;
  /// Its first `sent_` bytes are sent, which are less than its first frame.
  std::string outgoing_;
  size_t sent_ = 0;
  std::unique_ptr<char[]> buffer_;
  std::vector<pollfd> pollfds_;
  std::vector<Polled> polled_;

  // Sweeping.
  bool sweep_wanted_ = false;
  int64_t next_sweep_ns_ = 0;
  int64_t last_sweep_ns_ = 0;
  int64_t sweep_pause_ns_ = 0;
  std::vector<ProcessInfo> processes_;
  std::vector<char> is_ours_;
  std::vector<char> is_spared_;
  std::vector<char> is_victim_;
};

}  // namespace fsdprun::keeper
