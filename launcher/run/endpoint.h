#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// A numeric address and a port.
struct NumericEndpoint {
  std::string address;
  uint16_t port = 0;

  bool operator==(const NumericEndpoint&) const = default;
};

std::string ToString(const NumericEndpoint& endpoint);

/// How long a look-up may take: until `deadline`, or until `is_cancelled` (asked every 50 ms) says
/// true.
struct Patience {
  MonoTime deadline = MonoTime::max();
  std::function<bool()> is_cancelled;
};

/// The addresses of the host (forward only; IPv4 before IPv6, else in the resolver's order; never
/// empty). Errors: UNAVAILABLE naming host and reason, CANCELLED.
absl::StatusOr<std::vector<std::string>> LookUp(const std::string& host, const Patience& patience);

/// Which address of a host the nodes of one job are to use.
struct AddressChoice {
  std::string address;
  /// The host is this machine under its own name, which leads to loopback only (stock Debian maps
  /// it to 127.0.1.1): others reach it at another address.
  bool hides_own_address = false;
};

/// The first address that other machines can reach, else the first. `addresses` is not empty; a
/// host that is a number or some `localhost` is taken at its word. Pure.
AddressChoice ChooseAddress(absl::string_view host, absl::string_view own_name,
                            const std::vector<std::string>& addresses);

/// This machine's address on its default route, else its first that is not loopback. Errors:
/// NOT_FOUND if there is none.
absl::StatusOr<std::string> RoutableAddress();

/// True for 127.0.0.0/8, ::1 and their mapped forms.
bool IsLoopback(const std::string& numeric_address);

/// True if an interface of this machine has the address.
bool IsOwnAddress(const std::string& numeric_address);

/// The address of this machine from which `target` is reached; no packet is sent. Errors:
/// UNAVAILABLE without a route.
absl::StatusOr<std::string> AddressTowards(const NumericEndpoint& target);

/// A bound and listening socket. Port 0 takes a free one. Errors: ALREADY_EXISTS if the port is in
/// use, UNAVAILABLE otherwise; both name the endpoint.
absl::StatusOr<UniqueFd> BindListener(const NumericEndpoint& endpoint);

/// The port that a bound socket has. Errors: UNAVAILABLE.
absl::StatusOr<uint16_t> PortOf(const UniqueFd& socket);

/// `process 123 (python3)`, or empty if the process that listens on this machine's `port` cannot be
/// found out.
std::string PortHolder(uint16_t port);

/// Whether an HTTP/2 server, which a coordinator is, answers there. OK, UNAVAILABLE (nobody
/// answers, or not in time) or FAILED_PRECONDITION (the answer is not HTTP/2). Blocks until
/// `deadline` at most.
absl::Status ProbeHttp2(const NumericEndpoint& endpoint, MonoTime deadline);

}  // namespace fsdprun
