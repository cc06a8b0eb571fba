#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// A request from the agent to save a checkpoint and exit 0. After `grace_ms` (0: not known) the
/// agent kills the process; the time is not enforced here, StopPlan plans with it.
struct StopRequest {
  int64_t grace_ms = 0;
};

/// The worker's end of the control socket (FSDPRUN_CONTROL_FD): JSON lines both ways, see
/// proto/worker_contract.h. Never blocks, throws or raises SIGPIPE: a record that cannot be sent at
/// once is dropped, and after the agent's death every call does nothing. The same holds when
/// constructed with -1 or with a descriptor that is not a Unix socket, which is left open. Thread:
/// any; calls are serialised. Ownership: closes the descriptor.
class ControlChannel {
 public:
  explicit ControlChannel(int fd);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Each returns whether the record was written to the socket. Text is truncated so that a record
  /// fits contract::kMaxRecordBytes; invalid UTF-8 is replaced.
  bool SendHello(int rank, uint64_t generation);
  /// The caller limits the rate; `text` (without step/total) may be empty.
  bool SendProgress(int64_t step, int64_t total, std::string_view text);
  bool SendCheckpoint(int64_t step, std::string_view path);
  /// None was saved, though one was asked for.
  bool SendNoCheckpoint(int64_t step, std::string_view error);
  bool SendDone();

  /// Reads what has arrived and returns the stop request if there was one, now or earlier. Unknown
  /// and malformed lines are ignored. Cheap enough for every training step: one system call.
  std::optional<StopRequest> PollStop();
  /// Whether a checkpoint was asked for in what PollStop() has read since the last call.
  bool TakeSave();

  /// False without an agent, or after it has gone.
  bool is_open() const;

 private:
  // The rest is guarded by mutex_.
  bool SendLine(const std::string& line);
  void ParseLine(std::string_view line);
  void CloseFd();

  mutable std::mutex mutex_;
  int fd_;
  /// The unsent rest of a partly sent record; must precede the next record.
  std::string unsent_;
  std::string incoming_;
  bool skips_to_newline_ = false;
  std::optional<StopRequest> stop_;
  bool wants_save_ = false;
};

}  // namespace fsdprun::worker
