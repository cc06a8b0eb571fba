#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// The name that was probably meant by what was written; empty if none is close enough to be
/// suggested. Pure.
std::string Nearest(const std::vector<std::string>& names, absl::string_view written);

}  // namespace fsdprun
