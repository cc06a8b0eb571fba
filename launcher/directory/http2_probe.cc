#include "launcher/directory/http2_probe.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

}  // namespace

absl::Status ProbeHttp2(const NumericEndpoint& endpoint, MonoTime deadline) {
  // The client's preface and an empty SETTINGS frame; a server must answer with a SETTINGS frame of
  // its own.
  static constexpr char kHello[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(endpoint));
  const UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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
  char reply[9];
  size_t have = 0;
  const auto text = [&] { return absl::string_view(reply, have); };
  if (::send(socket.get(), kHello, sizeof(kHello) - 1, MSG_NOSIGNAL) ==
      static_cast<ssize_t>(sizeof(kHello) - 1)) {
    while (have < sizeof(reply) && MayBeSettingsFrame(text()) &&
           WaitFor(socket.get(), POLLIN, deadline)) {
      const ssize_t n = ::read(socket.get(), reply + have, sizeof(reply) - have);
      if (n <= 0) {
        break;
      }
      have += static_cast<size_t>(n);
    }
  }
  if (!MayBeSettingsFrame(text())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the program that listens on ", ToString(endpoint), " is no coordinator"));
  }
  return have == sizeof(reply)
             ? absl::OkStatus()
             : absl::UnavailableError(absl::StrCat("no answer from ", ToString(endpoint)));
}

}  // namespace fsdprun
