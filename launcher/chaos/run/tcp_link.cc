#include "launcher/chaos/run/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "launcher/directory/listener.h"

namespace fsdprun::chaos {
namespace {

constexpr char kHost[] = "127.0.0.1";
constexpr size_t kReadBytes = 65536;
/// More of a direction is not read before some of it is written.
constexpr size_t kWaitingMax = 1 << 20;

sockaddr_in LocalAddress(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

TcpLink::TcpLink(EventLoop& loop, uint16_t port) : loop_(loop), port_(port) {}

TcpLink::~TcpLink() {
  while (!connections_.empty()) {
    Close(connections_.begin()->first, /*is_refused=*/false);
  }
  if (listener_.valid() && !is_cut_) {
    loop_.Unwatch(listener_.get());
  }
}

absl::StatusOr<uint16_t> TcpLink::Listen() {
  ASSIGN_OR_RETURN(listener_, BindListener({.address = kHost, .port = 0}));
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  return PortOf(listener_);
}

void TcpLink::Cut() {
  if (!std::exchange(is_cut_, true)) {
    loop_.Unwatch(listener_.get());
    UpdateAll();
  }
}

void TcpLink::Delay(Duration latency) { latency_ = latency; }

void TcpLink::Heal() {
  latency_ = {};
  if (std::exchange(is_cut_, false)) {
    loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  }
  UpdateAll();
}

void TcpLink::Accept() {
  UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!client.valid() || !server.valid()) {
    return;
  }
  const sockaddr_in address = LocalAddress(port_);
  const bool is_begun =
      ::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno == EINPROGRESS;
  auto connection = std::make_unique<Connection>();
  connection->ends = {std::move(client), std::move(server)};
  const uint64_t id = next_id_++;
  connections_[id] = std::move(connection);
  if (is_begun) {
    Update(id);
  } else {
    Close(id, /*is_refused=*/true);
  }
}

bool TcpLink::IsDue(const Direction& direction) const {
  return !direction.pieces.empty() && direction.pieces.front().due <= MonoNow();
}

uint32_t TcpLink::Wanted(const Connection& connection, size_t end) const {
  if (is_cut_) {
    return 0;
  }
  if (connection.is_connecting) {
    return end == 1 ? static_cast<uint32_t>(EPOLLOUT) : 0;
  }
  const Direction& from = connection.to[1 - end];
  uint32_t events = 0;
  if (!from.has_ended && from.waiting_bytes < kWaitingMax) {
    events |= EPOLLIN;
  }
  if (IsDue(connection.to[end])) {
    events |= EPOLLOUT;
  }
  return events;
}

// An end that nothing is wanted of is not watched at all: epoll tells of its errors in any case.
void TcpLink::Update(uint64_t id) {
  Connection& connection = *connections_.at(id);
  for (size_t end = 0; end < connection.ends.size(); ++end) {
    const uint32_t wanted = Wanted(connection, end);
    const uint32_t before = std::exchange(connection.watched[end], wanted);
    const int fd = connection.ends[end].get();
    if (wanted == 0 && before != 0) {
      loop_.Unwatch(fd);
    } else if (wanted != 0 && before == 0) {
      loop_.Watch(fd, wanted, [this, id, end](uint32_t events) { OnReady(id, end, events); });
    } else if (wanted != before) {
      loop_.Rewatch(fd, wanted);
    }
    SetTimer(id, end);
  }
}

void TcpLink::UpdateAll() {
  for (const auto& [id, connection] : connections_) {
    Update(id);
  }
}

void TcpLink::SetTimer(uint64_t id, size_t end) {
  Direction& direction = connections_.at(id)->to[end];
  loop_.Cancel(std::exchange(direction.timer, 0));
  if (!is_cut_ && !direction.pieces.empty() && !IsDue(direction)) {
    direction.timer = loop_.At(direction.pieces.front().due, [this, id] { Update(id); });
  }
}

void TcpLink::OnReady(uint64_t id, size_t end, uint32_t events) {
  Connection& connection = *connections_.at(id);
  if (connection.is_connecting) {
    if (!FinishConnecting(connection)) {
      return Close(id, /*is_refused=*/true);
    }
    return Update(id);
  }
  bool is_sound = true;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    is_sound = Read(connection, end);
  }
  for (size_t to = 0; is_sound && to < connection.to.size(); ++to) {
    is_sound = Write(connection, to);
  }
  if (!is_sound || (connection.to[0].is_shut && connection.to[1].is_shut)) {
    return Close(id, /*is_refused=*/!is_sound);
  }
  Update(id);
}

bool TcpLink::FinishConnecting(Connection& connection) {
  int error = 0;
  socklen_t size = sizeof(error);
  ::getsockopt(connection.ends[1].get(), SOL_SOCKET, SO_ERROR, &error, &size);
  connection.is_connecting = false;
  return error == 0;
}

bool TcpLink::Read(Connection& connection, size_t end) {
  Direction& direction = connection.to[1 - end];
  std::string bytes(kReadBytes, '\0');
  const ssize_t size = ::recv(connection.ends[end].get(), bytes.data(), bytes.size(), 0);
  if (size < 0) {
    return errno == EAGAIN || errno == EINTR;
  }
  bytes.resize(static_cast<size_t>(size));
  direction.has_ended |= size == 0;
  direction.waiting_bytes += bytes.size();
  // An empty one is the end.
  direction.pieces.push_back({.due = MonoNow() + latency_, .bytes = std::move(bytes)});
  return true;
}

bool TcpLink::Write(Connection& connection, size_t end) {
  Direction& direction = connection.to[end];
  while (IsDue(direction)) {
    std::string& bytes = direction.pieces.front().bytes;
    if (bytes.empty()) {
      direction.is_shut = true;
      ::shutdown(connection.ends[end].get(), SHUT_WR);
    } else {
      const ssize_t size =
          ::send(connection.ends[end].get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size < 0) {
        return errno == EAGAIN || errno == EINTR;
      }
      direction.waiting_bytes -= static_cast<size_t>(size);
      bytes.erase(0, static_cast<size_t>(size));
      if (!bytes.empty()) {
        return true;
      }
    }
    direction.pieces.pop_front();
  }
  return true;
}

// Who is refused there is refused here, not just left.
void TcpLink::Close(uint64_t id, bool is_refused) {
  const auto node = connections_.extract(id);
  Connection& connection = *node.mapped();
  for (size_t end = 0; end < connection.ends.size(); ++end) {
    loop_.Cancel(connection.to[end].timer);
    if (connection.watched[end] != 0) {
      loop_.Unwatch(connection.ends[end].get());
    }
    if (is_refused) {
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(connection.ends[end].get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
  }
}

}  // namespace fsdprun::chaos
