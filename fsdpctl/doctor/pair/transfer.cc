#include "fsdpctl/doctor/pair/transfer.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>

namespace fsdprun::doctor {
namespace {

constexpr Duration kStall = std::chrono::seconds(3);
/// After the sender's time is over nothing more is on its way.
constexpr Duration kSilence = std::chrono::milliseconds(300);
/// However slowly it goes on.
constexpr Duration kLongest = std::chrono::seconds(10);
constexpr size_t kPieceSize = size_t{256} << 10;
/// More is not queued, so that little is left on its way at the end.
constexpr int kQueued = 512 << 10;

/// The kernel's, which has more behind what the C library declares.
struct LongTcpInfo {
  tcp_info known;
  uint64_t rates_and_bytes[4];
  uint32_t segments_out;
};
static_assert(sizeof(tcp_info) % alignof(uint64_t) == 0);

/// Polls the sockets and `stop_fd`, which is the last.
class Waiter {
 public:
  Waiter(const std::vector<int>& sockets, short events, int stop_fd) {
    for (const int socket : sockets) {
      polled_.push_back({.fd = socket, .events = events, .revents = 0});
    }
    polled_.push_back({.fd = stop_fd, .events = POLLIN, .revents = 0});
    left_ = sockets.size();
  }

  /// False if it is over: nothing came until `until`, or it is to stop, or all are broken.
  bool Wait(MonoTime until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - MonoNow()).count();
    const int ready = left_ == 0 || left <= 0
                          ? 0
                          : ::poll(polled_.data(), polled_.size(), static_cast<int>(left));
    return ready > 0 && polled_.back().revents == 0;
  }

  /// Calls `move(socket)`, which is to return what send() and recv() do, for those that are ready;
  /// the sum of what was moved.
  template <typename Move>
  uint64_t ForReady(const Move& move) {
    uint64_t sum = 0;
    for (size_t i = 0; i + 1 < polled_.size(); ++i) {
      if (polled_[i].fd < 0 || polled_[i].revents == 0) {
        continue;
      }
      const ssize_t n = move(polled_[i].fd);
      if (n > 0) {
        sum += static_cast<uint64_t>(n);
      } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        polled_[i].fd = -1;  // Broken; poll() passes it over.
        --left_;
      }
    }
    return sum;
  }

 private:
  std::vector<pollfd> polled_;
  size_t left_ = 0;
};

}  // namespace

void SendOver(const std::vector<int>& sockets, const TransferSize& size, int stop_fd) {
  static constexpr char kNothing[kPieceSize] = {};
  for (const int socket : sockets) {
    ::setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kQueued, sizeof(kQueued));
  }
  Waiter waiter(sockets, POLLOUT, stop_fd);
  const MonoTime begin = MonoNow();
  const MonoTime end = begin + (size.bytes > 0 ? kLongest : size.time);
  uint64_t sent = 0;
  for (MonoTime last = begin; size.bytes == 0 || sent < size.bytes;) {
    if (!waiter.Wait(std::min(end, last + kStall))) {
      return;
    }
    const uint64_t piece = waiter.ForReady([&](int socket) {
      const size_t most =
          size.bytes == 0 ? kPieceSize
                          : static_cast<size_t>(std::min<uint64_t>(kPieceSize, size.bytes - sent));
      return ::send(socket, kNothing, most, MSG_NOSIGNAL | MSG_DONTWAIT);
    });
    sent += piece;
    last = piece > 0 ? MonoNow() : last;
  }
}

Transferred ReceiveOver(const std::vector<int>& sockets, const TransferSize& size, int stop_fd) {
  Waiter waiter(sockets, POLLIN, stop_fd);
  const MonoTime begin = MonoNow();
  const MonoTime end = begin + size.time + kLongest;
  Transferred result;
  MonoTime first{};
  MonoTime last = begin;
  while (size.bytes == 0 || result.bytes < size.bytes) {
    const Duration patience = size.bytes == 0 && result.bytes > 0 ? kSilence : kStall;
    if (!waiter.Wait(std::min(end, last + patience))) {
      break;
    }
    // The kernel throws the bytes away without copying them.
    const uint64_t piece = waiter.ForReady(
        [](int socket) { return ::recv(socket, nullptr, kPieceSize, MSG_TRUNC | MSG_DONTWAIT); });
    if (piece == 0) {
      continue;
    }
    last = MonoNow();
    first = result.bytes == 0 ? last : first;
    result.bytes += piece;
  }
  result.time = result.bytes == 0 ? Duration::zero() : last - first;
  result.stalled = result.bytes < size.bytes && MonoNow() >= last + kStall;
  return result;
}

SegmentCounts CountSegments(const std::vector<int>& sockets) {
  SegmentCounts counts;
  for (const int socket : sockets) {
    LongTcpInfo info{};
    socklen_t length = sizeof(info);
    // An older kernel fills less of it.
    if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 &&
        length > offsetof(LongTcpInfo, segments_out)) {
      counts.sent += info.segments_out;
      counts.retransmitted += info.known.tcpi_total_retrans;
    }
  }
  return counts;
}

}  // namespace fsdprun::doctor
