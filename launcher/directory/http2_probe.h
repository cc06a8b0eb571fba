#pragma once

#include "absl/status/status.h"
#include "base/mono_time.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {

/// Whether an HTTP/2 server, such as a coordinator, answers at `endpoint`: OK, UNAVAILABLE (no
/// answer in time) or FAILED_PRECONDITION (the answer is not HTTP/2). Blocks until `deadline` at
/// most.
absl::Status ProbeHttp2(const NumericEndpoint& endpoint, MonoTime deadline);

}  // namespace fsdprun
