#pragma once

#include "absl/status/statusor.h"
#include "launcher/directory/directory.h"

namespace fsdprun {

/// A place where this launcher hosts the coordinator on a free port of all its addresses, which
/// others have to be told: `endpoints` are those that other machines may reach, the likeliest
/// first. Has no token. Errors: as BindListeners() and LookAtLocalAddress().
absl::StatusOr<Place> HostOnFreePort(const DirectoryContext& context);

}  // namespace fsdprun
