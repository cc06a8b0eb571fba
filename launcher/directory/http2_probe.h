#pragma once

#include "absl/status/status.h"
#include "base/mono_time.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// Whether a server that can be a coordinator answers at `endpoint`, one of HTTP/2, or of TLS where
/// this launcher speaks it: OK, UNAVAILABLE (no answer in time), FAILED_PRECONDITION (it is none)
/// or PERMISSION_DENIED (it can be one, but speaks TLS and this launcher does not, or the reverse).
/// Blocks until `deadline` at most.
absl::Status ProbeCoordinator(const NumericEndpoint& endpoint, bool uses_tls, MonoTime deadline);

}  // namespace fsdprun
