#include "fsdpctl/doctor/pair/link.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"

namespace fsdprun::doctor {
namespace {

/// What every path of IPv4 has to take.
constexpr int kSmallSegment = 536;
constexpr size_t kPiece = 16384;

absl::Status Broken(int error) {
  return absl::UnavailableError(error == 0 ? "the other end has closed the connection"
                                           : ErrorText(error));
}

int ErrorOf(int socket) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace

absl::Status WaitFor(int fd, short events, MonoTime deadline, int stop_fd) {
  for (;;) {
    pollfd polled[2] = {{.fd = fd, .events = events, .revents = 0},
                        {.fd = stop_fd, .events = POLLIN, .revents = 0}};
    // poll() takes an int of milliseconds; a deadline may be far.
    const auto left = std::min(std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()),
                               std::chrono::milliseconds(60'000));
    const int ready = ::poll(polled, 2, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (polled[1].revents != 0) {
      return absl::CancelledError("interrupted");
    }
    if (ready > 0) {
      return absl::OkStatus();
    }
    if (MonoNow() >= deadline) {
      return absl::DeadlineExceededError("no answer");
    }
  }
}

absl::StatusOr<UniqueFd> ConnectTo(const NumericEndpoint& endpoint, SegmentSize segments,
                                   MonoTime deadline, int stop_fd) {
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(endpoint));
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return Broken(errno);
  }
  if (segments == SegmentSize::kSmall) {
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_MAXSEG, &kSmallSegment, sizeof(kSmallSegment));
  }
  if (::connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS) {
    return Broken(errno);
  }
  RETURN_IF_ERROR(WaitFor(socket.get(), POLLOUT, deadline, stop_fd));
  if (const int error = ErrorOf(socket.get()); error != 0) {
    return Broken(error);
  }
  SendAtOnce(socket);
  return socket;
}

void SendAtOnce(const UniqueFd& socket) {
  const int one = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

std::string PeerAddress(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0
             ? AddressText(reinterpret_cast<const sockaddr*>(&address))
             : "";
}

std::string OwnAddressOf(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0
             ? AddressText(reinterpret_cast<const sockaddr*>(&address))
             : "";
}

absl::Status Link::Send(const Message& message, MonoTime deadline) {
  const std::string frame = Framed(message);
  for (size_t done = 0; done < frame.size();) {
    const ssize_t n = ::send(socket_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      RETURN_IF_ERROR(WaitFor(socket_.get(), POLLOUT, deadline, stop_fd_));
    } else if (errno != EINTR) {
      return Broken(errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> Link::Receive(MonoTime deadline) {
  char piece[kPiece];
  for (;;) {
    if (const std::optional<std::string> text = buffer_.Take()) {
      std::optional<Message> message = ParseMessage(*text);
      if (!message.has_value()) {
        return absl::InvalidArgumentError("the other end says nothing that fsdpctl doctor says");
      }
      return *std::move(message);
    }
    if (buffer_.IsTooLong()) {
      return absl::InvalidArgumentError("the other end says nothing that fsdpctl doctor says");
    }
    RETURN_IF_ERROR(WaitFor(socket_.get(), POLLIN, deadline, stop_fd_));
    const ssize_t n = ::recv(socket_.get(), piece, std::min(sizeof(piece), buffer_.Missing()), 0);
    if (n > 0) {
      buffer_.Append({piece, static_cast<size_t>(n)});
    } else if (n == 0) {
      return Broken(0);
    } else if (errno != EAGAIN && errno != EINTR) {
      return Broken(errno);
    }
  }
}

}  // namespace fsdprun::doctor
