#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// A bound and listening socket. Port 0 takes a free one. The address `::` means all, IPv4 and
/// IPv6; without IPv6, all of IPv4. Errors: ALREADY_EXISTS if the port is in use, UNAVAILABLE
/// otherwise; both name the endpoint.
absl::StatusOr<UniqueFd> BindListener(const NumericEndpoint& endpoint);

/// One socket for each of `addresses` that this machine has, all on one port. Whoever binds the
/// first of them owns the port: a second launcher with the same list fails with ALREADY_EXISTS. If
/// a stranger has one of the others, it is left out. Errors: as BindListener().
absl::StatusOr<std::vector<UniqueFd>> BindListeners(const std::vector<std::string>& addresses,
                                                    uint16_t port);

/// The port that a bound socket has. Errors: UNAVAILABLE.
absl::StatusOr<uint16_t> PortOf(const UniqueFd& socket);

/// `process 123 (python3)`, or empty if the process that listens on this machine's `port` cannot be
/// determined.
std::string PortHolder(uint16_t port);

}  // namespace fsdprun
