#include "fsdp_runtime/store/tcp.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
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

using std::chrono::milliseconds;

[[noreturn]] void fail_tcp(const std::string& what, int error) {
  throw StoreError(what + ": " + std::strerror(error));
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
int try_connect(int fd, const addrinfo& address, TcpDeadline deadline) {
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

std::string numeric_address(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes =
      address.sa_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  ::inet_ntop(address.sa_family, bytes, text, sizeof(text));
  return text;
}

using InterfaceList = std::unique_ptr<ifaddrs, void (*)(ifaddrs*)>;

InterfaceList list_interfaces() {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    fail_tcp("listing the network interfaces", errno);
  }
  return {all, &::freeifaddrs};
}

bool has_address(const ifaddrs& entry, int family) {
  return entry.ifa_addr != nullptr && entry.ifa_addr->sa_family == family;
}

// Such an address says nothing without the name of the interface.
bool is_link_local(const sockaddr& address) {
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

int port_of_socket(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_tcp("reading the socket's own port", errno);
  }
  // The port is in the same place in both families.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

int remaining_ms(TcpDeadline deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, INT_MAX));
}

ConnectAttempt connect_once(const std::string& host, int port, TcpDeadline deadline) {
  Addresses addresses;
  try {
    addresses = resolve(host, port);
  } catch (const StoreError& error) {
    return {-1, error.what(), false};
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
      return {fd, "", false};
    }
    ::close(fd);
  }
  return {-1, std::string("cannot connect: ") + std::strerror(error), error == ETIMEDOUT};
}

int listen_at(const std::string& address, int backlog, int& port) {
  const Addresses addresses = resolve(address, 0);
  const int fd = ::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0 || ::bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      ::listen(fd, backlog) != 0) {
    const int error = errno;
    if (fd >= 0) {
      ::close(fd);
    }
    fail_tcp("listening at " + address, error);
  }
  port = port_of_socket(fd);
  return fd;
}

std::string address_of_socket(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_tcp("reading the socket's own address", errno);
  }
  return numeric_address(reinterpret_cast<const sockaddr&>(address));
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
      return numeric_address(reinterpret_cast<const sockaddr&>(own));
    }
  }
  fail_tcp("looking for the route to '" + host + "'", error);
}

std::string address_of_interface(const std::string& name) {
  const InterfaceList all = list_interfaces();
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
      if (has_address(*entry, family) && name == entry->ifa_name) {
        return numeric_address(*entry->ifa_addr);
      }
    }
  }
  throw StoreError("no network interface '" + name + "' with an address; see `ip addr`");
}

std::vector<NetworkInterface> interfaces_to_others() {
  const InterfaceList all = list_interfaces();
  std::vector<NetworkInterface> found;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = all.get(); entry != nullptr; entry = entry->ifa_next) {
      if (has_address(*entry, family) && (entry->ifa_flags & IFF_UP) != 0 &&
          (entry->ifa_flags & IFF_LOOPBACK) == 0 && !is_link_local(*entry->ifa_addr)) {
        found.push_back({entry->ifa_name, numeric_address(*entry->ifa_addr)});
      }
    }
  }
  return found;
}

}  // namespace fsdp
