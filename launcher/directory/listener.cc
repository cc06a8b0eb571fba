#include "launcher/directory/listener.h"

#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

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

// 0, or the errno of the call that failed.
int TryToListen(const SocketAddress& address, UniqueFd* listener, bool* is_bound) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) {
    return errno;
  }
  const int one = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (address.family() == AF_INET6) {
    // The default is the system's; IPv4 is wanted with `::`, and impossible with other addresses.
    const int zero = 0;
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
  }
  *is_bound = ::bind(socket.get(), address.get(), address.length) == 0;
  if (!*is_bound || ::listen(socket.get(), kListenBacklog) != 0) {
    return errno;
  }
  *listener = std::move(socket);
  return 0;
}

// 0 and a socket in `listener`, or an errno.
int Listen(const SocketAddress& address, UniqueFd* listener) {
  int error = 0;
  for (int attempt = 0; attempt < kListenAttempts; ++attempt) {
    bool is_bound = false;
    error = TryToListen(address, listener, &is_bound);
    if (error != EADDRINUSE || !is_bound) {
      break;
    }
    // Nothing tells when the other one is done.
    ::poll(nullptr, 0, 1 + static_cast<int>(std::random_device()() % 5));
  }
  return error;
}

bool IsNotOurs(int error) { return error == EADDRNOTAVAIL || error == EAFNOSUPPORT; }

absl::StatusOr<int> ListenAt(const NumericEndpoint& endpoint, UniqueFd* listener) {
  ASSIGN_OR_RETURN(const SocketAddress address, ToSocketAddress(endpoint));
  const int error = Listen(address, listener);
  if (IsNotOurs(error) && endpoint.address == "::") {
    return ListenAt({"0.0.0.0", endpoint.port}, listener);
  }
  return error;
}

absl::Status CannotListen(const NumericEndpoint& endpoint, int error) {
  const std::string where = IsWildcard(endpoint.address)
                                ? absl::StrCat("port ", endpoint.port, " of all addresses")
                                : ToString(endpoint);
  const std::string message = absl::StrCat("cannot listen on ", where, ": ", ErrorText(error));
  return error == EADDRINUSE ? absl::AlreadyExistsError(message) : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<UniqueFd> BindListener(const NumericEndpoint& endpoint) {
  UniqueFd listener;
  ASSIGN_OR_RETURN(const int error, ListenAt(endpoint, &listener));
  if (error != 0) {
    return CannotListen(endpoint, error);
  }
  return listener;
}

absl::StatusOr<std::vector<UniqueFd>> BindListeners(const std::vector<std::string>& addresses,
                                                    uint16_t port) {
  std::vector<UniqueFd> listeners;
  NumericEndpoint first;
  int first_error = 0;
  for (const std::string& address : addresses) {
    const NumericEndpoint endpoint{address, port};
    UniqueFd listener;
    ASSIGN_OR_RETURN(const int error, ListenAt(endpoint, &listener));
    if (error == 0) {
      ASSIGN_OR_RETURN(port, PortOf(listener));
      listeners.push_back(std::move(listener));
      continue;
    }
    if (first_error == 0 || IsNotOurs(first_error)) {
      first = endpoint;
      first_error = error;
    }
    if (listeners.empty() && !IsNotOurs(error)) {
      break;
    }
  }
  if (listeners.empty()) {
    return CannotListen(first, first_error);
  }
  return listeners;
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

}  // namespace fsdprun
