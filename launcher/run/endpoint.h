#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

/// Looks the host up (forward only; IPv4 first). Blocks for as long as the resolver takes. Errors:
/// UNAVAILABLE naming host and reason.
absl::StatusOr<NumericEndpoint> Resolve(const HostPort& endpoint);

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
/// answers) or FAILED_PRECONDITION (somebody who is no HTTP/2 server). Blocks until `deadline` at
/// most.
absl::Status ProbeHttp2(const NumericEndpoint& endpoint, MonoTime deadline);

}  // namespace fsdprun
