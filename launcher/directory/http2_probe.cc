#include "launcher/directory/http2_probe.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/rpc/tls.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace fsdprun {
namespace {

bool WaitFor(int fd, short events, MonoTime deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()).count();
    pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
    const int ready = left > 0 ? ::poll(&poll_fd, 1, static_cast<int>(left)) : 0;
    if (ready >= 0 || errno != EINTR) {
      return ready > 0;
    }
  }
}

// Whether `reply` can be the beginning of an HTTP/2 server's first frame, an empty or small
// SETTINGS frame.
bool MayBeSettingsFrame(absl::string_view reply) {
  static constexpr char kSettingsFrame = 4;
  return (reply.empty() || reply[0] == 0) && (reply.size() < 4 || reply[3] == kSettingsFrame);
}

// The same of a TLS server's first record, a handshake or an alert.
bool MayBeTls(absl::string_view reply) {
  return (reply.empty() || reply[0] == 0x15 || reply[0] == 0x16) &&
         (reply.size() < 2 || reply[1] == 3);
}

absl::StatusOr<UniqueFd> Connect(const NumericEndpoint& endpoint, MonoTime deadline) {
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(endpoint));
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() ||
      (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) ||
      !WaitFor(socket.get(), POLLOUT, deadline)) {
    return absl::UnavailableError(absl::StrCat("cannot connect to ", ToString(endpoint)));
  }
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot connect to ", ToString(endpoint), ": ", ErrorText(error)));
  }
  return socket;
}

// The answer's beginning: as much as tells what it is.
std::string AnswerTo(const UniqueFd& socket, absl::string_view hello, MonoTime deadline) {
  char reply[9];
  size_t have = 0;
  if (::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(hello.size())) {
    return "";
  }
  while (have < sizeof(reply) && (MayBeSettingsFrame({reply, have}) || MayBeTls({reply, have})) &&
         WaitFor(socket.get(), POLLIN, deadline)) {
    const ssize_t n = ::read(socket.get(), reply + have, sizeof(reply) - have);
    if (n <= 0) {
      break;
    }
    have += static_cast<size_t>(n);
  }
  return {reply, have};
}

}  // namespace

absl::Status ProbeCoordinator(const NumericEndpoint& endpoint, bool uses_tls, MonoTime deadline) {
  // The client's preface and an empty SETTINGS frame; a server must answer with a SETTINGS frame of
  // its own.
  static constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
  ASSIGN_OR_RETURN(const UniqueFd socket, Connect(endpoint, deadline));
  const std::string reply = AnswerTo(
      socket, uses_tls ? TlsClientHello() : std::string(kHello, sizeof(kHello) - 1), deadline);
  if (!MayBeSettingsFrame(reply) && !MayBeTls(reply)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program that listens on ", ToString(endpoint), " is no coordinator"));
  }
  if (reply.size() < (uses_tls ? 2 : 9)) {
    return absl::UnavailableError(absl::StrCat("no answer from ", ToString(endpoint)));
  }
  if (MayBeTls(reply) != uses_tls) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot join at ", ToString(endpoint), ": ", TlsMismatch(uses_tls)));
  }
  return absl::OkStatus();
}

}  // namespace fsdprun
