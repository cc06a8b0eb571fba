#include "fsdp_runtime/store/store_connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

namespace fsdp {
namespace {

using TimePoint = StoreConnection::TimePoint;
using std::chrono::milliseconds;

// More than any value that a rendezvous exchanges; a server that announces more does not speak this
// protocol.
constexpr uint64_t kValueBytesMax = uint64_t{64} << 20;
constexpr size_t kFirstPieceBytes = size_t{64} << 10;
// Timeout of one connection attempt, after which the next address, or a new lookup of the name, is
// tried.
constexpr milliseconds kAttemptMax{3000};

[[noreturn]] void fail(const std::string& what, int error) {
  throw StoreError(what + ": " + std::strerror(error));
}

int remaining_ms(TimePoint deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  // A numeric address is never passed to the resolver.
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    hints.ai_flags = AI_NUMERICSERV;
    error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  }
  if (error != 0) {
    throw StoreError("looking up '" + host + "': " + ::gai_strerror(error));
  }
  return Addresses(found);
}

// 0, or the errno of the attempt.
int try_connect(int fd, const addrinfo& address, TimePoint deadline) {
  if (::connect(fd, address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd entry{fd, POLLOUT, 0};
  if (::poll(&entry, 1, remaining_ms(deadline)) != 1) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

// TCP can connect a port of the ephemeral range to itself if nothing listens on it.
bool is_connected_to_itself(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_length = sizeof(own);
  socklen_t peer_length = sizeof(peer);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 &&
         own_length == peer_length && std::memcmp(&own, &peer, own_length) == 0;
}

// The socket, or -1 and why there is none.
int connect_once(const std::string& host, int port, TimePoint deadline, std::string& reason) {
  Addresses addresses;
  try {
    addresses = resolve(host, port);
  } catch (const StoreError& error) {
    reason = error.what();
    return -1;
  }
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int fd = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    error = try_connect(fd, *address, deadline);
    if (error == 0 && is_connected_to_itself(fd)) {
      error = ECONNREFUSED;
    }
    if (error == 0) {
      return fd;
    }
    ::close(fd);
  }
  reason = std::string("cannot connect: ") + std::strerror(error);
  return -1;
}

std::string numeric_address(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  ::inet_ntop(address.ss_family, bytes, text, sizeof(text));
  return text;
}

}  // namespace

StoreConnection::StoreConnection(const std::string& host, int port, TimePoint deadline)
    : deadline_(deadline) {
  milliseconds pause{5};
  std::string reason;
  while ((fd_ = connect_once(host, port,
                             std::min(deadline, std::chrono::steady_clock::now() + kAttemptMax),
                             reason)) < 0) {
    if (remaining_ms(deadline) == 0) {
      throw StoreError(reason);
    }
    // There is no event for a remote port that starts to listen: retry with increasing pauses.
    ::poll(nullptr, 0, std::min<int>(static_cast<int>(pause.count()), remaining_ms(deadline)));
    pause = std::min(pause * 2, milliseconds(200));
  }
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

StoreConnection::~StoreConnection() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void StoreConnection::put_raw(const void* data, size_t bytes) {
  out_.append(static_cast<const char*>(data), bytes);
}

void StoreConnection::put_string(std::string_view value) {
  put_u64(value.size());
  out_.append(value);
}

void StoreConnection::wait_for(short events, const char* what) {
  while (true) {
    pollfd entry{fd_, events, 0};
    const int ready = ::poll(&entry, 1, remaining_ms(deadline_));
    if (ready == 1) {
      return;
    }
    if (ready == 0) {
      throw StoreTimeout(std::string("no answer in time while ") + what);
    }
    if (errno != EINTR) {
      fail(what, errno);
    }
  }
}

void StoreConnection::flush() {
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t n = ::send(fd_, out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      wait_for(POLLOUT, "sending");
    } else if (errno != EINTR) {
      fail("sending", errno);
    }
  }
  out_.clear();
}

void StoreConnection::take_raw(void* data, size_t bytes) {
  auto* target = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd_, target, bytes, 0);
    if (n > 0) {
      target += n;
      bytes -= static_cast<size_t>(n);
    } else if (n == 0) {
      throw StoreError("the server closed the connection");
    } else if (errno == EAGAIN) {
      wait_for(POLLIN, "waiting for the answer");
    } else if (errno != EINTR) {
      fail("receiving", errno);
    }
  }
}

uint8_t StoreConnection::take_byte() {
  uint8_t value = 0;
  take_raw(&value, sizeof(value));
  return value;
}

uint32_t StoreConnection::take_u32() {
  uint32_t value = 0;
  take_raw(&value, sizeof(value));
  return value;
}

int64_t StoreConnection::take_i64() {
  int64_t value = 0;
  take_raw(&value, sizeof(value));
  return value;
}

std::string StoreConnection::take_string() {
  uint64_t bytes = 0;
  take_raw(&bytes, sizeof(bytes));
  if (bytes > kValueBytesMax) {
    throw StoreError("the server announces a value of " + std::to_string(bytes) +
                     " bytes; it does not speak the store's protocol");
  }
  std::string value;
  while (value.size() < bytes) {
    // Allocates as data arrives: the announced length may be wrong.
    const size_t have = value.size();
    value.resize(std::min<size_t>(bytes, std::max(kFirstPieceBytes, 2 * have)));
    take_raw(value.data() + have, value.size() - have);
  }
  return value;
}

std::string StoreConnection::local_address() const {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail("reading the socket's own address", errno);
  }
  return numeric_address(address);
}

std::string local_address_towards(const std::string& host, int port) {
  const Addresses addresses = resolve(host, port);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    const int fd = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_storage own{};
    socklen_t length = sizeof(own);
    const bool is_found = fd >= 0 && ::connect(fd, address->ai_addr, address->ai_addrlen) == 0 &&
                          ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0;
    error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    if (is_found) {
      return numeric_address(own);
    }
  }
  fail("looking for the route to '" + host + "'", error);
}

}  // namespace fsdp
