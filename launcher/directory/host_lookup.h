#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"

namespace fsdprun {

/// gethostname(); never asks a name server.
std::string HostName();

/// A lookup ends at `deadline`, or when `is_cancelled` (polled every 50 ms) returns true.
struct LookupOptions {
  MonoTime deadline = MonoTime::max();
  std::function<bool()> is_cancelled;
};

/// The addresses of the host (forward only; IPv4 before IPv6, else in the resolver's order; each
/// once; never empty). Errors: UNAVAILABLE naming host and reason, CANCELLED.
absl::StatusOr<std::vector<std::string>> LookUpHost(const std::string& host,
                                                    const LookupOptions& options);

}  // namespace fsdprun
