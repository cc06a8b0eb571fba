#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/process/keeper_protocol.h"
#include "agent/process/keeper_socket.h"
#include "agent/process/orphans.h"
#include "agent/process/process_scan.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// One worker to be started by the keeper; see keeper::SpawnCommand for the wire form.
struct WorkerSpec {
  /// Slot on this node; unique among workers that have not been reported as exited.
  int local_rank = 0;
  /// Program and arguments. A program without '/' is looked up in the PATH of `environment`.
  std::vector<std::string> argv;
  /// The whole environment of the worker; nothing is inherited.
  std::map<std::string, std::string> environment;
  /// Files that receive the raw bytes of the streams (created with their folders, truncated).
  /// An empty path leaves the stream connected to the launcher's own.
  std::string stdout_path;
  std::string stderr_path;
  /// The file is made with the first byte; otherwise before the worker starts.
  bool opens_stdout_late = false;
  bool opens_stderr_late = false;
  /// Whether to give the worker a control socket (FSDPRUN_CONTROL_FD).
  bool wants_control_fd = true;
  /// Soft limit of open descriptors; 0: the keeper's own.
  uint64_t descriptor_limit = 0;
  /// CPUs that it may run on; empty: the keeper's.
  std::vector<int> cpus;
  /// Standard input is the launcher's; otherwise /dev/null.
  bool reads_stdin = true;
  /// See Note [Lives].
  uint64_t life = 0;
};

/// What the keeper reports, on the loop thread. Unset callbacks are skipped. A callback may call
/// any method of the client; it may destroy the client only from within on_lost or on_ended.
struct KeeperCallbacks {
  std::function<void(const keeper::HelloReport&)> on_hello;
  std::function<void(const keeper::SpawnedReport&)> on_spawned;
  std::function<void(const keeper::SpawnFailedReport&)> on_spawn_failed;
  /// Comes after the last on_log_grew/on_log_data of output that the worker wrote before it died.
  /// If the log files are slow it comes 1 s after the death; what is late, before on_all_gone.
  std::function<void(const keeper::ExitedReport&)> on_exited;
  /// The file of a stream has grown to `size` bytes; what is new can be read from it.
  std::function<void(const keeper::LogGrewReport&)> on_log_grew;
  /// Of an adopted keeper, before on_log_grew: so much of it was shown before.
  std::function<void(const keeper::ShownReport&)> on_shown_before;
  /// Output of a stream whose file cannot be written (see on_log_degraded); raw bytes, in order.
  std::function<void(const keeper::LogDataReport&)> on_log_data;
  /// Once per stream: the log file cannot be written, its output comes through on_log_data from
  /// here on.
  std::function<void(const keeper::LogDegradedReport&)> on_log_degraded;
  /// One line that the worker wrote to its control socket, without the newline, not validated.
  std::function<void(const keeper::ControlRecordReport&)> on_control_record;
  /// Something worth a log line, for example a dropped over-long control record.
  std::function<void(const keeper::NoteReport&)> on_note;
  /// No worker and no process started by a worker is alive; sent each time the count drops to zero
  /// after a spawn, and in answer to KillAll.
  std::function<void(const keeper::AllGoneReport&)> on_all_gone;
  /// The keeper exited without Shutdown(), or violated the protocol. All its workers are dead and
  /// every process that was reparented to this one has been killed, or `reason` says what is left.
  std::function<void(const std::string& reason)> on_lost;
  /// After Shutdown(): the keeper was reaped and no process of the job is left, or a process
  /// blocked in the kernel did not end within a few seconds.
  std::function<void()> on_ended;
};

/// Directories that are to be removed if this process cannot do it; empty: none.
struct KeeperLeavings {
  /// Of output that no log keeps.
  std::string spool;
  /// Of the workers' vitals.
  std::string vitals;
};

/// The agent's end of a keeper process: starts it, sends commands, turns frames into callbacks.
/// Thread: loop thread only (construction and Start() also before the loop runs). Nothing blocks;
/// commands are queued. Destroying the client (or this process dying in any way) closes the socket:
/// the keeper then kills every worker, or waits for another agent if it has a named socket and was
/// not told that there is none.
class KeeperClient {
 public:
  /// How long a keeper may take for its first word.
  static constexpr Duration kHelloLimit = std::chrono::seconds(10);

  KeeperClient(EventLoop& loop, KeeperCallbacks callbacks, Duration hello_limit = kHelloLimit);
  ~KeeperClient();
  KeeperClient(const KeeperClient&) = delete;
  KeeperClient& operator=(const KeeperClient&) = delete;

  /// Starts `keeper_path` and makes this process a subreaper, so that the orphans of a killed
  /// keeper can be found. If this process ends without Shutdown(), the keeper removes the
  /// directories `leavings`. Errors: NOT_FOUND/PERMISSION_DENIED/INTERNAL with the path and what to
  /// do.
  absl::Status Start(const std::string& keeper_path, const KeeperLeavings& leavings = {},
                     const KeeperSocket& socket = {});
  /// In place of Start(): goes on with a keeper whose agent is gone. What it repeats comes as
  /// callbacks, once the loop runs; there is no hello.
  void Adopt(AttachedKeeper keeper);

  /// From here on the keeper kills the workers and exits when this process has not run its loop for
  /// `lease`. Renewed by itself, while the loop runs. Call after Start(); again for another lease.
  void HoldLease(Duration lease);

  /// Asks for a worker; answered by on_spawned or on_spawn_failed. Errors: INVALID_ARGUMENT for an
  /// empty argv or a spec too large to send, UNAVAILABLE when the keeper is gone.
  absl::Status Spawn(const WorkerSpec& spec);
  /// Sends `signal` to one worker, or to all with keeper::kAllRanks; to its whole process group
  /// when `group`.
  void Signal(int local_rank, int signal, bool group, uint64_t life = 0);
  /// Sends `signal` to one process of the job, a worker or what one has started. The keeper refuses
  /// any other, with a note.
  void SignalProcess(const ProcessInfo& process, int signal);
  /// SIGKILL for every worker and everything they started; answered by on_all_gone.
  void KillAll(uint64_t life = 0);
  /// Sends one JSON line (no newline) to a worker's control socket; dropped with a note if the
  /// worker does not read.
  void SendControl(int local_rank, const std::string& line, uint64_t life = 0);
  /// For the next agent, in place of the last memo. False if it is too long, and was not sent.
  bool LeaveMemo(const std::string& memo);
  /// For the next agent: so much of a worker's log has reached its reader.
  void NoteShown(int local_rank, keeper::Stream stream, uint64_t offset, uint64_t life);
  /// The keeper kills what is left and exits; answered by on_ended instead of on_lost. Idempotent.
  void Shutdown();

  /// The keeper's process id; 0 before Start().
  pid_t pid() const { return pid_; }
  /// Readable once it has ended; -1 before Start().
  int pidfd() const { return pidfd_.get(); }
  /// True between a successful Start() and the loss or end of the keeper.
  bool is_alive() const { return socket_.valid(); }
  /// Processes of the keeper that nobody waits for; see Note [Log writer].
  const std::set<pid_t>& log_writers() const { return log_writers_; }
  /// Of an adopted keeper that is lost: its workers, which do not become this process's children.
  Strangers TakeWorkers() { return std::exchange(workers_, {}); }
  /// No keeper process is left: none was started, or it has been reaped.
  bool has_ended() const { return pid_ == 0 || was_reaped_; }

 private:
  void Send(const std::string& frame);
  void OnSocket(uint32_t events);
  void OnHelloLate();
  bool Flush();
  bool ReadFrames();
  bool AcceptHello(const keeper::HelloReport& hello);
  void Dispatch(const keeper::Report& report);
  void NoteWorker(const keeper::SpawnedReport& report);
  void Lose(const std::string& reason);
  void OnKeeperEnd(MonoTime deadline);
  void OnEndLate();
  void Sweep(MonoTime deadline);
  void FinishLoss(const std::string& what_is_left);
  void CloseSocket();
  absl::StatusOr<UniqueFd> OpenSocket(const KeeperSocket& socket);

  // Constant after construction.
  EventLoop& loop_;
  const KeeperCallbacks callbacks_;
  const Duration hello_limit_;

  // Owned by the loop thread.
  UniqueFd socket_;
  UniqueFd pidfd_;
  pid_t pid_ = 0;
  std::string path_;
  /// It would wait for another agent.
  bool is_named_ = false;
  bool is_adopted_ = false;
  /// If it is adopted: by slot.
  Strangers workers_;
  bool shutting_down_ = false;
  bool was_reaped_ = false;
  std::string lost_reason_;
  std::string outgoing_;
  std::string incoming_;
  EventLoop::TimerId sweep_timer_ = 0;
  EventLoop::TimerId hello_timer_ = 0;
  EventLoop::TimerId lease_timer_ = 0;
  std::set<pid_t> foreign_children_;
  std::set<pid_t> log_writers_;
  /// Set to false by the destructor, for callbacks that destroy the client while frames are being
  /// read.
  std::shared_ptr<bool> is_live_ = std::make_shared<bool>(true);
};

/// Path of `fsdp-keeper` beside the running program. Errors: NOT_FOUND naming the folder.
absl::StatusOr<std::string> FindKeeperBinary();

}  // namespace fsdprun
