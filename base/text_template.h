#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// Python's string.Template.safe_substitute: `$name` and `${name}` become the value of the name,
/// `$$` becomes `$`, everything else is unchanged, names without a value too.
std::string SubstituteNames(absl::string_view text,
                            const std::map<std::string, std::string>& values);

}  // namespace fsdprun
