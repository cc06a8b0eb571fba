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

/// A lookup ends at `deadline`, or when `is_cancelled` (polled every 50 ms) returns true.
struct LookupOptions {
  MonoTime deadline = MonoTime::max();
  std::function<bool()> is_cancelled;
};

/// The addresses of the host (forward only; IPv4 before IPv6, else in the resolver's order; never
/// empty). Errors: UNAVAILABLE naming host and reason, CANCELLED.
absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options);

/// The address of a host that the nodes of a job use.
struct AddressChoice {
  std::string address;
  /// The host is this machine under its own name, which resolves to loopback only (stock Debian
  /// maps it to 127.0.1.1): other machines reach it at another address.
  bool resolves_to_loopback_here = false;
};

/// The first address that is not loopback, else the first. A numeric host or a form of `localhost`
/// always gives the first. `addresses` is not empty. Pure.
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
/// determined.
std::string PortHolder(uint16_t port);

/// Whether an HTTP/2 server, such as a coordinator, answers at `endpoint`: OK, UNAVAILABLE (no
/// answer in time) or FAILED_PRECONDITION (the answer is not HTTP/2). Blocks until `deadline` at
/// most.
absl::Status ProbeHttp2(const NumericEndpoint& endpoint, MonoTime deadline);

}  // namespace fsdprun
