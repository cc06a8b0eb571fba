#pragma once

#include <cstdint>

#include "fsdprun/v1/control.pb.h"

namespace fsdprun::top {

/// `ns` later nothing else is known: adds them to all ages of a state, and takes them from what is
/// still to come. What a worker did stays as it was when its node told of it. Pure.
void AddAge(int64_t ns, v1::JobStatus* status);

}  // namespace fsdprun::top
