#include "launcher/directory/numeric_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

std::string ToString(const NumericEndpoint& endpoint) {
  return ToString(HostPort{endpoint.address, endpoint.port});
}

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
  const absl::string_view mapped = absl::StripPrefix(text, "::ffff:");
  return std::string(absl::StrContains(mapped, '.') ? mapped : text);
}

bool IsNumericAddress(absl::string_view text) {
  return ToSocketAddress({std::string(text), 0}).ok();
}

bool IsLoopback(absl::string_view numeric_address) {
  return absl::StartsWith(numeric_address, "127.") || numeric_address == "::1" ||
         absl::StartsWith(numeric_address, "::ffff:127.");
}

bool IsWildcard(absl::string_view numeric_address) {
  return numeric_address == "0.0.0.0" || numeric_address == "::";
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) {
    return addresses;
  }
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    std::string text = entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0
                           ? std::string()
                           : AddressText(entry->ifa_addr);
    if (!text.empty()) {
      addresses.push_back(std::move(text));
    }
  }
  ::freeifaddrs(interfaces);
  return addresses;
}

bool IsOwnAddress(const std::string& numeric_address) {
  if (IsLoopback(numeric_address)) {
    return true;
  }
  const std::vector<std::string> own = OwnAddresses();
  return std::find(own.begin(), own.end(), numeric_address) != own.end();
}

absl::StatusOr<std::string> RoutableAddress() {
  // Addresses reserved for documentation: their route is the default route.
  for (const char* far : {"192.0.2.1", "2001:db8::1"}) {
    if (auto by_route = AddressTowards({far, 9}); by_route.ok() && !IsLoopback(*by_route)) {
      return by_route;
    }
  }
  const std::vector<std::string> own = OwnAddresses();
  for (const bool is_v6 : {false, true}) {
    for (const std::string& address : own) {
      if (absl::StrContains(address, ':') == is_v6 && !IsLoopback(address) &&
          !absl::StartsWith(address, "fe80:")) {
        return address;
      }
    }
  }
  return absl::NotFoundError("this machine has no address that others can reach");
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

}  // namespace fsdprun
