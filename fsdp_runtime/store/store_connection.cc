#include "fsdp_runtime/store/store_connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fsdp_runtime/store/tcp.h"

namespace fsdp {
namespace {

using TimePoint = StoreConnection::TimePoint;
using std::chrono::milliseconds;

// More than any value that a rendezvous exchanges; a server that announces more does not speak this
// protocol.
constexpr uint64_t kValueBytesMax = uint64_t{64} << 20;
constexpr size_t kFirstPieceBytes = size_t{64} << 10;
// What a value may take on a slow network, beside the deadline: so much per millisecond, at least.
constexpr size_t kBytesPerMsMin = 256;
// Timeout of one connection attempt, after which the next address, or a new lookup of the name, is
// tried.
constexpr milliseconds kAttemptMax{3000};

milliseconds time_for(size_t bytes) {
  return milliseconds(static_cast<int64_t>(bytes / kBytesPerMsMin));
}

[[noreturn]] void fail(const std::string& what, int error) {
  throw StoreError(what + ": " + std::strerror(error));
}

}  // namespace

StoreConnection::StoreConnection(const std::string& host, int port, TimePoint deadline)
    : deadline_(deadline) {
  milliseconds pause{5};
  while (true) {
    const ConnectAttempt attempt = connect_once(
        host, port, std::min(deadline, std::chrono::steady_clock::now() + kAttemptMax));
    fd_ = attempt.fd;
    if (fd_ >= 0) {
      break;
    }
    if (remaining_ms(deadline) == 0 && attempt.is_silent) {
      throw StoreTimeout(attempt.reason);
    }
    if (remaining_ms(deadline) == 0) {
      throw StoreError(attempt.reason);
    }
    // There is no event for a remote port that starts to listen: retry with increasing pauses.
    ::poll(nullptr, 0, std::min<int>(static_cast<int>(pause.count()), remaining_ms(deadline)));
    pause = std::min(pause * 2, milliseconds(200));
  }
  const auto set = [this](int level, int name, int value) {
    ::setsockopt(fd_, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // Firewalls forget connections that are silent for long, as one is between two checkpoints.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
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
  deadline_ += time_for(value.size());
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
    deadline_ += time_for(value.size() - have);
    take_raw(value.data() + have, value.size() - have);
  }
  return value;
}

std::string StoreConnection::local_address() const { return address_of_socket(fd_); }

}  // namespace fsdp
