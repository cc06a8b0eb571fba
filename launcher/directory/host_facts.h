#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/directory/directory.h"
#include "launcher/directory/rules.h"

namespace fsdprun {

/// Looks `host` up, for a few seconds at most, and says what it is to this machine. Errors:
/// UNAVAILABLE, CANCELLED.
absl::StatusOr<HostView> LookAtHost(const std::string& host, const DirectoryContext& context);

/// --local-addr, which must be an address of this machine; an empty view if it is not given.
absl::StatusOr<HostView> LookAtLocalAddress(const DirectoryContext& context);

}  // namespace fsdprun
