#pragma once

// The way from one machine to the other: through the codecs, as bytes.

#include "absl/status/statusor.h"
#include "proto/cluster/messages.h"

namespace fsdprun::sim {

/// What the receiver makes of a message. Errors: what decoding says of it, or INTERNAL if something
/// other than what was sent arrives.
absl::StatusOr<FromAgent> OverTheWire(const FromAgent& message);
absl::StatusOr<ToAgent> OverTheWire(const ToAgent& message);

}  // namespace fsdprun::sim
