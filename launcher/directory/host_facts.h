#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/directory/directory.h"
#include "launcher/directory/rules.h"

namespace fsdprun {

/// Looks `host` up and says what it is to this machine. With `patience`, a name that is unknown is
/// looked up again for so long; without, this takes a few seconds at most. Errors: UNAVAILABLE,
/// CANCELLED.
absl::StatusOr<HostView> LookAtHost(const std::string& host, const DirectoryContext& context,
                                    Duration patience = Duration::zero());

/// --local-addr; an empty view if it is not given. Warns of one that is not this machine's: see
/// ViewForeignName(). Errors: CANCELLED.
absl::StatusOr<HostView> LookAtLocalAddress(const DirectoryContext& context);

/// Sets the addresses of a node that joins at `place->endpoints`: --local-addr, or else the address
/// from which it reaches them. Errors: UNAVAILABLE if there is no route, CANCELLED.
absl::Status NameJoiningNode(const DirectoryContext& context, Place* place);

}  // namespace fsdprun
