#pragma once

#include <string>

#include "proto/cluster/types.h"

namespace fsdprun {

/// The progress line: `step 120/1000 loss 2.31 ...`. Empty while nothing has been reported.
/// Pure.
std::string FormatProgressLine(const Progress& progress);

}  // namespace fsdprun
