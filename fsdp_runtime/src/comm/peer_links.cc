#include "fsdp_runtime/src/comm/peer_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <utility>

#include "fsdp_runtime/src/comm/sigpipe_block.h"
#include "fsdp_runtime/store/tcp.h"

namespace fsdp {
namespace {

using shm::Fd;

// Messages are sentences; more is no message of ours.
constexpr uint32_t kMessageBytesMax = 1 << 20;
// How long whoever connects may take to say who it is, before the next one has its turn.
constexpr std::chrono::seconds kHelloMax{5};
// The answer to a hello. Who gets none was too late with it, and connects again.
constexpr char kWelcome = 'w';
// How long a wait for a peer goes on before a look at whether it will come.
constexpr std::chrono::seconds kLook{1};
// Descriptors that are left for others: connections that carry data, files.
constexpr rlim_t kOtherDescriptors = 256;
// How long leaving may take if peers do not read.
constexpr std::chrono::seconds kFarewellMax{1};

/// What a rank publishes.
struct Address {
  std::string host;
  int port = 0;
  uint64_t token = 0;  // known to the ranks of this world only

  std::string text() const {
    return host + " " + std::to_string(port) + " " + std::to_string(token);
  }
  static Address parse(const std::string& text) {
    Address address;
    std::istringstream in(text);
    in >> address.host >> address.port >> address.token;
    if (in.fail()) {
      throw LinkError("a rank runs another version of libfsdp");
    }
    return address;
  }
};

/// The first that a rank sends to the one it has connected to.
struct Hello {
  uint64_t token = 0;
  int64_t rank = 0;
};

std::string address_key(int64_t rank) { return "links/" + std::to_string(rank); }

void set_options(int fd) {
  const auto set = [fd](int level, int name, int value) {
    ::setsockopt(fd, level, name, &value, sizeof(value));
  };
  constexpr int kSeconds = static_cast<int>(PeerLinks::kSilenceMax.count());
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kSeconds / 4);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kSeconds / 4);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kSeconds * 1000);
}

bool wait_readable(int fd, TcpDeadline deadline) {
  pollfd entry{fd, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&entry, 1, remaining_ms(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready == 1;
}

std::string described(int64_t peer, const Address& address) {
  return "rank " + std::to_string(peer) + " at " + address.host + " port " +
         std::to_string(address.port);
}

Fd connect_to(const Address& address, const Hello& hello, int64_t peer, TcpDeadline deadline) {
  const ConnectAttempt attempt = connect_once(address.host, address.port, deadline);
  Fd fd(attempt.fd);
  if (!fd.valid()) {
    throw LinkError("rank " + std::to_string(hello.rank) + " cannot reach " +
                    described(peer, address) + ": " + attempt.reason);
  }
  // A connection that has sent nothing yet takes a few bytes at once.
  if (::send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
    throw LinkError("rank " + std::to_string(hello.rank) + " connected to " +
                    described(peer, address) + ", which hung up: " + std::strerror(errno));
  }
  return fd;
}

rlimit descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

/// Raises the soft limit towards the hard one if it does not allow for `links` more. Shells set it
/// to 1024 usually, and the hard one to much more.
void make_room_for(size_t links) {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  const auto needed =
      static_cast<rlim_t>(std::distance(begin(open), end(open))) + links + kOtherDescriptors;
  rlimit limit = descriptor_limit();
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// The same, but throws what exchange.check() does.
bool wait_for_peer(int fd, shm::Exchange& exchange, TcpDeadline deadline) {
  while (!wait_readable(fd, std::min(deadline, std::chrono::steady_clock::now() + kLook))) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    exchange.check();
  }
  return true;
}

/// False if it was not welcome, and is to connect again.
bool is_welcome(int fd, const std::string& at, shm::Exchange& exchange, TcpDeadline deadline) {
  if (!wait_for_peer(fd, exchange, deadline)) {
    throw LinkError(at + " did not answer in time");
  }
  char answer = 0;
  return ::recv(fd, &answer, 1, 0) == 1 && answer == kWelcome;
}

/// Who connects next; rank -1: nobody of this world.
std::pair<Fd, int64_t> accept_one(int listener, uint64_t token, TcpDeadline deadline) {
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const int error = fd.valid() ? 0 : errno;
  // The connection stays where it is, so trying again would not end.
  if (error == EMFILE || error == ENFILE) {
    throw LinkError(std::string("a rank cannot accept the connection of another: ") +
                    std::strerror(error) + " (the limit of this process is " +
                    std::to_string(descriptor_limit().rlim_cur) +
                    "); a rank needs one for each other rank: raise `ulimit -Hn` where the job is "
                    "started");
  }
  Hello hello;
  const TcpDeadline hello_deadline =
      std::min(deadline, std::chrono::steady_clock::now() + kHelloMax);
  if (!fd.valid() || !wait_readable(fd.get(), hello_deadline) ||
      ::recv(fd.get(), &hello, sizeof(hello), 0) != sizeof(hello) || hello.token != token) {
    return {Fd(), -1};
  }
  return {std::move(fd), hello.rank};
}

}  // namespace

PeerLinks::PeerLinks(shm::Exchange& exchange, int64_t rank, int64_t size,
                     const std::string& address, TcpDeadline deadline)
    : links_(static_cast<size_t>(size)), woken_(::eventfd(0, EFD_CLOEXEC)) {
  make_room_for(links_.size());
  Address own{address, 0, std::random_device{}() | (uint64_t{std::random_device{}()} << 32)};
  const Fd listener(listen_at(address, static_cast<int>(size), own.port));
  exchange.put(address_key(rank), own.text());
  std::vector<Address> lower;
  for (int64_t peer = 0; peer < rank; ++peer) {
    lower.push_back(Address::parse(exchange.get(address_key(peer), deadline)));
    links_[static_cast<size_t>(peer)].fd =
        connect_to(lower.back(), {lower.back().token, rank}, peer, deadline);
  }
  for (int64_t missing = size - 1 - rank; missing > 0;) {
    const auto is_missing = [](const Link& link) { return !link.fd.valid(); };
    if (!wait_for_peer(listener.get(), exchange, deadline)) {
      const auto first = std::find_if(links_.begin() + rank + 1, links_.end(), is_missing);
      throw LinkError("rank " + std::to_string(rank) + " was not reached by rank " +
                      std::to_string(first - links_.begin()) + " at " + address + " port " +
                      std::to_string(own.port) + " in time");
    }
    auto [fd, peer] = accept_one(listener.get(), own.token, deadline);
    if (peer > rank && peer < size && !links_[static_cast<size_t>(peer)].fd.valid() &&
        ::send(fd.get(), &kWelcome, 1, MSG_NOSIGNAL) == 1) {
      links_[static_cast<size_t>(peer)].fd = std::move(fd);
      --missing;
    }
  }
  // Only now: those that are to answer may have to connect to others first.
  for (int64_t peer = 0; peer < rank; ++peer) {
    const Address& theirs = lower[static_cast<size_t>(peer)];
    Fd& fd = links_[static_cast<size_t>(peer)].fd;
    while (!is_welcome(fd.get(), described(peer, theirs), exchange, deadline)) {
      exchange.check();
      fd = connect_to(theirs, {theirs.token, rank}, peer, deadline);
    }
  }
  for (const Link& link : links_) {
    if (link.fd.valid()) {
      set_options(link.fd.get());
    }
  }
}

PeerLinks::~PeerLinks() {
  {
    std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  wake();
  if (thread_.joinable()) {
    thread_.join();
  }
  const TcpDeadline deadline = std::chrono::steady_clock::now() + kFarewellMax;
  for (Link& link : links_) {
    if (link.fd.valid()) {
      send_rest(link, deadline);
      // The kernel drops what is under way to the peer if something from it is left unread.
      ::shutdown(link.fd.get(), SHUT_WR);
      char rest[4096];
      while (::recv(link.fd.get(), rest, sizeof(rest), MSG_DONTWAIT) > 0) {
      }
    }
  }
}

void PeerLinks::send_rest(Link& link, TcpDeadline deadline) {
  std::lock_guard lock(mu_);
  while (!link.unsent.empty() && remaining_ms(deadline) > 0) {
    pollfd entry{link.fd.get(), POLLOUT, 0};
    ::poll(&entry, 1, remaining_ms(deadline));
    flush(link);
  }
}

void PeerLinks::start(Listener& listener) {
  thread_ = std::thread([this, &listener] {
    ::pthread_setname_np(::pthread_self(), "fsdp-links");
    const SigpipeBlock no_sigpipe;
    loop(listener);
  });
}

void PeerLinks::send_to_all(std::string_view message) {
  const auto bytes = static_cast<uint32_t>(std::min<size_t>(message.size(), kMessageBytesMax));
  bool is_rest = false;
  {
    std::lock_guard lock(mu_);
    for (Link& link : links_) {
      if (link.fd.valid()) {
        link.unsent.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
        link.unsent.append(message.substr(0, bytes));
        flush(link);
        is_rest = is_rest || !link.unsent.empty();
      }
    }
  }
  if (is_rest) {
    wake();
  }
}

void PeerLinks::flush(Link& link) {
  while (!link.unsent.empty()) {
    const ssize_t n = ::send(link.fd.get(), link.unsent.data(), link.unsent.size(), MSG_NOSIGNAL);
    if (n > 0) {
      link.unsent.erase(0, static_cast<size_t>(n));
    } else if (errno != EINTR) {
      if (errno != EAGAIN) {
        link.unsent.clear();  // it has ended, of which the thread hears
      }
      return;
    }
  }
}

void PeerLinks::wake() {
  const uint64_t one = 1;
  (void)!::write(woken_.get(), &one, sizeof(one));
}

void PeerLinks::close(Link& link) {
  std::lock_guard lock(mu_);
  const Fd gone = std::move(link.fd);
  link.unsent.clear();
}

bool PeerLinks::receive(Link& link, int64_t peer, Listener& listener) {
  char piece[4096];
  const ssize_t n = ::recv(link.fd.get(), piece, sizeof(piece), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (n <= 0) {
    return false;
  }
  link.received.append(piece, static_cast<size_t>(n));
  uint32_t bytes = 0;
  while (link.received.size() >= sizeof(bytes)) {
    std::memcpy(&bytes, link.received.data(), sizeof(bytes));
    if (bytes > kMessageBytesMax) {
      return false;
    }
    if (link.received.size() - sizeof(bytes) < bytes) {
      break;
    }
    const std::string message = link.received.substr(sizeof(bytes), bytes);
    link.received.erase(0, sizeof(bytes) + bytes);
    listener.on_message(peer, message);
  }
  return true;
}

void PeerLinks::loop(Listener& listener) {
  std::vector<pollfd> polled;
  std::vector<size_t> peers;
  while (true) {
    polled.assign(1, {woken_.get(), POLLIN, 0});
    peers.assign(1, 0);
    {
      std::lock_guard lock(mu_);
      if (is_stopping_) {
        return;
      }
      for (size_t peer = 0; peer < links_.size(); ++peer) {
        Link& link = links_[peer];
        if (link.fd.valid()) {
          flush(link);
          const int events = POLLIN | (link.unsent.empty() ? 0 : POLLOUT);
          polled.push_back({link.fd.get(), static_cast<short>(events), 0});
          peers.push_back(peer);
        }
      }
    }
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) {
      uint64_t count = 0;
      (void)!::read(woken_.get(), &count, sizeof(count));
    }
    for (size_t i = 1; i < polled.size(); ++i) {
      Link& link = links_[peers[i]];
      const auto peer = static_cast<int64_t>(peers[i]);
      if ((polled[i].revents & (POLLIN | POLLERR | POLLHUP)) != 0 &&
          !receive(link, peer, listener)) {
        close(link);
        listener.on_closed(peer);
      }
    }
  }
}

}  // namespace fsdp
