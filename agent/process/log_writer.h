#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/process/log_queue.h"

namespace fsdprun::keeper {

/// The keeper's end of the log writer, the process that makes folders, opens log files and writes
/// them. Thread: the keeper's only one; nothing here blocks.
///
/// Note [Log writer]
/// A file system may hang for as long as it likes (a lost NFS server, a FUSE daemon that stopped).
/// Whoever touches it then hangs in the kernel and may not even be killed. That must not be the
/// keeper, which reaps workers, so a child of it writes the logs. The keeper keeps every byte until
/// the writer has answered that it is in the file. A writer that does not answer in time is killed,
/// and not waited for; what it has not answered for goes to the agent, as does all later output, so
/// that nothing is lost. Nothing is shown twice either: the agent reads a file only as far as the
/// writer has answered. The file itself may hold more than that: what the writer wrote last.
/// The next file to be opened makes a new writer. That is when a worker starts, or with its first
/// byte if nobody asked for the file: many workers print nothing, and to make and remove two files
/// for each of them takes a fifth of a short job's time.
///
/// The writer is a child that ordinary waits do not see (clone without an exit signal), so that it
/// does not count among the processes that workers have left behind.
class LogWriter {
 public:
  struct Answer {
    LogOp op = LogOp::kOpen;
    uint64_t file = 0;
    uint32_t written = 0;
    int32_t error = 0;
    /// What of the output is not in the file; valid until the answer is dropped.
    std::string_view rest;
  };

  LogWriter() = default;
  /// Kills the process and reaps it if it ends within kEndLimitMs.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  /// Starts the process; an errno if that fails.
  int Start();
  bool is_running() const { return socket_ >= 0; }
  pid_t pid() const { return pid_; }
  /// For poll(); -1 when there is no process.
  int fd() const { return socket_; }
  bool wants_to_send() const { return socket_ >= 0 && !queue_.NextUnsent().empty(); }

  /// Makes the folder of `path` and creates the file; returns its number. Is answered.
  uint64_t Open(const std::string& path);
  /// `bytes` must not exceed kMaxWriteBytes, and there must be room for them. Is answered.
  void Write(uint64_t file, std::string_view bytes);
  void Close(uint64_t file);
  bool HasRoom() const { return queue_.HasRoom(kMaxWriteBytes); }
  /// Sends what the socket takes.
  void Flush();

  /// The next answer; false if there is none yet, or the process has died (`is_running()` is false
  /// then). DropAnswer() must follow.
  bool PeekAnswer(Answer& answer);
  void DropAnswer() { queue_.Pop(); }

  /// See LogQueue::Observe().
  void Observe(bool is_awaited, int64_t now_ns) { queue_.Observe(is_awaited, now_ns); }
  int64_t DeadlineNs() const { return queue_.DeadlineNs(); }
  /// The deadline has passed, and the process is blocked. One that waits for the processor (an
  /// overloaded machine) gets more time.
  bool IsHung(int64_t now_ns);

  /// Kills the process. What it has not answered for stays in the queue, for TakeUnanswered().
  void Abandon();
  /// The oldest request that an abandoned process has not answered; false if there is none.
  /// DropAnswer() must follow.
  bool PeekUnanswered(Answer& answer) const;

  /// An earlier process that has not been reaped.
  struct Abandoned {
    pid_t pid = -1;
    /// For poll(): readable once the process can be reaped. No signal tells of that.
    int pidfd = -1;
  };
  const std::vector<Abandoned>& abandoned() const { return abandoned_; }
  /// Whether `pid` is this process, or an earlier one that has not been reaped.
  bool Owns(pid_t pid) const;
  /// Reaps earlier processes that have ended.
  void ReapAbandoned();

  static constexpr size_t kMaxWriteBytes = 32u << 10;

 private:
  static constexpr int kEndLimitMs = 100;

  int socket_ = -1;
  pid_t pid_ = -1;
  uint64_t next_file_ = 1;
  LogQueue queue_;
  std::vector<Abandoned> abandoned_;
};

/// The log writer's process: serves requests until end of file. Never returns.
[[noreturn]] void ServeLogRequests(int socket);

}  // namespace fsdprun::keeper
