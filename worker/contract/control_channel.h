#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fsdprun::worker {

/// A request from the agent to finish: save what must be saved and exit 0. After `grace_ms` the
/// agent ends the process; nothing here keeps that time.
struct StopRequest {
  int64_t grace_ms = 0;
};

/// The worker's end of the control socket (FSDPRUN_CONTROL_FD): JSON lines both ways, see
/// proto/worker_contract.h. Nothing here blocks, throws or raises SIGPIPE: a record that cannot be
/// sent at once is dropped, a dead agent makes the channel inert. Constructed with -1 it is inert
/// from the start, as with a descriptor that is no Unix socket, which it leaves open. Thread: one
/// at a time. Ownership: closes the descriptor.
class ControlChannel {
 public:
  explicit ControlChannel(int fd);
  ~ControlChannel();
  ControlChannel(const ControlChannel&) = delete;
  ControlChannel& operator=(const ControlChannel&) = delete;

  /// Each returns whether the record was handed to the socket. Text is cut so that a record fits
  /// contract::kMaxRecordBytes; invalid UTF-8 is replaced.
  bool SendHello(int rank, uint64_t generation);
  /// The caller limits the rate; `text` (without step/total) may be empty.
  bool SendProgress(int64_t step, int64_t total, std::string_view text);
  bool SendCheckpoint(int64_t step, std::string_view path);
  bool SendDone();

  /// Reads what has arrived and returns a stop request once it came (and from then on). Unknown and
  /// malformed lines are ignored. Cheap enough for every training step: one system call.
  std::optional<StopRequest> PollStop();

  /// False when there is no agent (any more).
  bool is_open() const { return fd_ >= 0; }

 private:
  bool SendLine(const std::string& line);
  void ParseLine(std::string_view line);
  void CloseFd();

  int fd_;
  /// The unsent end of a record that went out in part; it must precede the next record.
  std::string unsent_;
  std::string incoming_;
  bool skips_to_newline_ = false;
  std::optional<StopRequest> stop_;
};

}  // namespace fsdprun::worker
