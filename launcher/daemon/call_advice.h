#pragma once

#include <string>

#include "absl/status/status.h"

namespace fsdprun {

/// Why a daemon could not be asked, or has refused, with what to do about it if that is known.
/// Pure.
std::string WithAdvice(const absl::Status& why);

}  // namespace fsdprun
