#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/pair/pair_message.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun::doctor {

// Errors of all that waits here: DEADLINE_EXCEEDED, CANCELLED when `stop_fd` is readable,
// UNAVAILABLE if the connection breaks.

/// Waits until `fd` has one of `events`.
absl::Status WaitFor(int fd, short events, MonoTime deadline, int stop_fd);

enum class SegmentSize {
  kUsual,
  /// Whatever loses large packets, these pass.
  kSmall,
};

/// A connected socket that does not block. UNAVAILABLE also if it is refused; the message is only
/// why.
absl::StatusOr<UniqueFd> ConnectTo(const NumericEndpoint& endpoint, SegmentSize segments,
                                   MonoTime deadline, int stop_fd);

/// Small messages go at once.
void SendAtOnce(const UniqueFd& socket);
/// Of the other end of a connection; empty if there is none.
std::string PeerAddress(const UniqueFd& socket);
/// Of this end.
std::string OwnAddressOf(const UniqueFd& socket);

/// Messages over one connection. Reads no byte behind the message that it returns. Thread: one.
class Link {
 public:
  Link(UniqueFd socket, int stop_fd) : socket_(std::move(socket)), stop_fd_(stop_fd) {}

  absl::Status Send(const Message& message, MonoTime deadline);
  /// Errors: also INVALID_ARGUMENT for what is no message.
  absl::StatusOr<Message> Receive(MonoTime deadline);
  /// From now on messages may be as long as nodes' are, instead of strangers'.
  void Trust() { buffer_.Allow(kMostOfNode); }

  int fd() const { return socket_.get(); }
  const UniqueFd& socket() const { return socket_; }
  UniqueFd Release() { return std::move(socket_); }

 private:
  UniqueFd socket_;
  int stop_fd_;
  FrameBuffer buffer_{kMostOfStranger};
};

}  // namespace fsdprun::doctor
