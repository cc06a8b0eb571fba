#include "launcher/run/endpoint.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int kListenBacklog = 1024;
// Note [Two that listen at once]
// SO_REUSEADDR lets a new job bind the port while connections of the previous one are in TIME_WAIT.
// It also lets two sockets be bound to one port as long as neither listens. If both then call
// listen() at the same time, Linux may refuse both, and both nodes of a job would take the other
// one for the coordinator. So whoever is refused by listen() begins again after a random pause;
// if somebody listens by then, it is bind() that fails.
constexpr int kListenAttempts = 20;
constexpr auto kCancelCheckInterval = std::chrono::milliseconds(50);

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::StatusOr<SocketAddress> ToSocketAddress(const NumericEndpoint& endpoint) {
  SocketAddress result;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  if (::inet_pton(AF_INET, endpoint.address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(endpoint.port);
    result.length = sizeof(*v4);
    return result;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (::inet_pton(AF_INET6, endpoint.address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(endpoint.port);
    result.length = sizeof(*v6);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", endpoint.address, "' is not a numeric address"));
}

std::string AddressText(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
                sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
                sizeof(text));
  }
  return text;
}

// The inode of the socket that listens on `port`, from one of /proc/net/tcp and tcp6; empty if
// there is none.
std::string ListeningInode(const char* path, uint16_t port) {
  std::ifstream table(path);
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    uint32_t local_port = 0;
    const size_t colon = local.rfind(':');
    if (state == "0A" && colon != std::string::npos &&
        absl::SimpleHexAtoi(local.substr(colon + 1), &local_port) && local_port == port) {
      return inode;
    }
  }
  return "";
}

bool HoldsSocket(const std::string& pid, const std::string& link_text) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  DIR* fds = ::opendir(folder.c_str());
  if (fds == nullptr) {
    return false;
  }
  bool found = false;
  while (const dirent* entry = found ? nullptr : ::readdir(fds)) {
    char target[64];
    const ssize_t n = ::readlinkat(::dirfd(fds), entry->d_name, target, sizeof(target));
    found = n > 0 && std::string(target, static_cast<size_t>(n)) == link_text;
  }
  ::closedir(fds);
  return found;
}

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

bool IsNumeric(absl::string_view host) { return ToSocketAddress({std::string(host), 0}).ok(); }

bool IsLocalhost(absl::string_view host) {
  return absl::StartsWithIgnoreCase(host, "localhost") ||
         absl::EndsWithIgnoreCase(host, ".localhost") || host == "ip6-localhost" ||
         host == "ip6-loopback";
}

absl::Status NoAddress(const std::string& host, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot find the address of host '", host, "': ", why,
                                             "; give a numeric address or fix name resolution"));
}

// `error` is one of getaddrinfo's codes.
struct ResolverResult {
  int error = 0;
  std::vector<std::string> addresses;
};

ResolverResult Resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  ResolverResult found;
  found.error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
      if (entry->ai_family == family) {
        found.addresses.push_back(AddressText(entry->ai_addr));
      }
    }
  }
  if (list != nullptr) {
    ::freeaddrinfo(list);
  }
  if (found.error == 0 && found.addresses.empty()) {
    found.error = EAI_NONAME;
  }
  return found;
}

// Whether `reply` can be the beginning of an HTTP/2 server's first frame, an empty or small
// SETTINGS frame.
bool MayBeSettingsFrame(absl::string_view reply) {
  static constexpr char kSettingsFrame = 4;
  return (reply.empty() || reply[0] == 0) && (reply.size() < 4 || reply[3] == kSettingsFrame);
}

}  // namespace

std::string ToString(const NumericEndpoint& endpoint) {
  return ToString(HostPort{endpoint.address, endpoint.port});
}

absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options) {
  // getaddrinfo() cannot be interrupted, so it runs on a thread that is abandoned if it hangs.
  std::promise<ResolverResult> promise;
  std::future<ResolverResult> future = promise.get_future();
  std::thread([host, promise = std::move(promise)]() mutable {
    promise.set_value(Resolve(host));
  }).detach();
  while (future.wait_for(kCancelCheckInterval) != std::future_status::ready) {
    if (options.is_cancelled && options.is_cancelled()) {
      return absl::CancelledError(
          absl::StrCat("interrupted while looking up the address of host '", host, "'"));
    }
    if (MonoNow() >= options.deadline) {
      return NoAddress(host, "the name server does not answer");
    }
  }
  const ResolverResult found = future.get();
  if (found.error != 0) {
    return NoAddress(host, ::gai_strerror(found.error));
  }
  return found.addresses;
}

AddressChoice ChooseAddress(absl::string_view host, absl::string_view own_name,
                            const std::vector<std::string>& addresses) {
  if (IsNumeric(host) || IsLocalhost(host)) {
    return {addresses.front(), false};
  }
  for (const std::string& address : addresses) {
    if (!IsLoopback(address)) {
      return {address, false};
    }
  }
  // node0 and node0.domain are one machine.
  const auto first_label = [](absl::string_view name) { return name.substr(0, name.find('.')); };
  return {addresses.front(), absl::EqualsIgnoreCase(first_label(host), first_label(own_name))};
}

absl::StatusOr<std::string> RoutableAddress() {
  // An address reserved for documentation (TEST-NET-1): its route is the default route.
  if (auto by_route = AddressTowards({"192.0.2.1", 9}); by_route.ok() && !IsLoopback(*by_route)) {
    return by_route;
  }
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot list the network interfaces: ", ErrorText(errno)));
  }
  std::string address;
  for (const ifaddrs* entry = interfaces; entry != nullptr && address.empty();
       entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
        (entry->ifa_flags & (IFF_UP | IFF_LOOPBACK)) == IFF_UP) {
      address = AddressText(entry->ifa_addr);
    }
  }
  ::freeifaddrs(interfaces);
  return address.empty() ? absl::StatusOr<std::string>(absl::NotFoundError(
                               "this machine has no address that others can reach"))
                         : address;
}

bool IsLoopback(const std::string& numeric_address) {
  return absl::StartsWith(numeric_address, "127.") || numeric_address == "::1" ||
         absl::StartsWith(numeric_address, "::ffff:127.");
}

bool IsOwnAddress(const std::string& numeric_address) {
  if (IsLoopback(numeric_address)) {
    return true;
  }
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) {
    return false;
  }
  bool found = false;
  for (const ifaddrs* entry = interfaces; entry != nullptr && !found; entry = entry->ifa_next) {
    found = entry->ifa_addr != nullptr && AddressText(entry->ifa_addr) == numeric_address;
  }
  ::freeifaddrs(interfaces);
  return found;
}

absl::StatusOr<std::string> AddressTowards(const NumericEndpoint& target) {
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(target));
  const UniqueFd socket(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (!socket.valid() || ::connect(socket.get(), address.get(), address.length) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no route to ", ToString(target), ": ", ErrorText(errno)));
  }
  return AddressText(reinterpret_cast<const sockaddr*>(&own));
}

absl::StatusOr<UniqueFd> BindListener(const NumericEndpoint& endpoint) {
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(endpoint));
  int error = 0;
  for (int attempt = 0; attempt < kListenAttempts; ++attempt) {
    UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int one = 1;
    const bool is_bound =
        socket.valid() &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        ::bind(socket.get(), address.get(), address.length) == 0;
    if (is_bound && ::listen(socket.get(), kListenBacklog) == 0) {
      return socket;
    }
    error = errno;
    if (!is_bound || error != EADDRINUSE) {
      break;
    }
    // Nothing tells when the other one is done.
    ::poll(nullptr, 0, 1 + static_cast<int>(std::random_device()() % 5));
  }
  const std::string message =
      absl::StrCat("cannot listen on ", ToString(endpoint), ": ", ErrorText(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::UnavailableError(message);
}

absl::StatusOr<uint16_t> PortOf(const UniqueFd& socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot ask for a bound port: ", ErrorText(errno)));
  }
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

std::string PortHolder(uint16_t port) {
  std::string inode = ListeningInode("/proc/net/tcp", port);
  if (inode.empty()) {
    inode = ListeningInode("/proc/net/tcp6", port);
  }
  DIR* proc = inode.empty() ? nullptr : ::opendir("/proc");
  if (proc == nullptr) {
    return "";
  }
  const std::string link_text = absl::StrCat("socket:[", inode, "]");
  std::string holder;
  while (const dirent* entry = holder.empty() ? ::readdir(proc) : nullptr) {
    int pid = 0;
    if (absl::SimpleAtoi(entry->d_name, &pid) && HoldsSocket(entry->d_name, link_text)) {
      std::string name;
      std::getline(std::ifstream(absl::StrCat("/proc/", pid, "/comm")), name);
      holder = absl::StrCat("process ", pid, " (", name, ")");
    }
  }
  ::closedir(proc);
  return holder;
}

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
