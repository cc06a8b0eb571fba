#pragma once

#include "absl/status/status.h"

namespace fsdprun {

/// Whether a call has failed because nothing listens where it went. Pure.
bool IsConnectRefusal(const absl::Status& status);

}  // namespace fsdprun
