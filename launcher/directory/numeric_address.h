#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fsdprun {

/// A numeric address and a port.
struct NumericEndpoint {
  std::string address;
  uint16_t port = 0;

  bool operator==(const NumericEndpoint&) const = default;
};

/// `address:port`, with brackets around an IPv6 address.
std::string ToString(const NumericEndpoint& endpoint);

/// An endpoint as the socket calls take it.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// Errors: INVALID_ARGUMENT if the address is not numeric.
absl::StatusOr<SocketAddress> ToSocketAddress(const NumericEndpoint& endpoint);

/// Without the port; an IPv4 address in IPv6 clothes (::ffff:10.0.0.1) as IPv4. Empty for other
/// families.
std::string AddressText(const sockaddr* address);

bool IsNumericAddress(absl::string_view text);

/// True for 127.0.0.0/8, ::1 and their mapped forms.
bool IsLoopback(absl::string_view numeric_address);

/// True for 0.0.0.0 and ::, which as an address to listen on mean all.
bool IsWildcard(absl::string_view numeric_address);

/// The addresses of this machine's interfaces that are up, loopback included.
std::vector<std::string> OwnAddresses();

/// True if an interface of this machine has the address.
bool IsOwnAddress(const std::string& numeric_address);

/// This machine's address on its default route, IPv4 before IPv6, else its first that is neither
/// loopback nor of one link only. Errors: NOT_FOUND if there is none.
absl::StatusOr<std::string> RoutableAddress();

/// The address of this machine from which `target` is reached; no packet is sent. Errors:
/// UNAVAILABLE without a route.
absl::StatusOr<std::string> AddressTowards(const NumericEndpoint& target);

}  // namespace fsdprun
