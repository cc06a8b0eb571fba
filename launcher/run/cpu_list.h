#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// The numbers in the kernel's form of a list, `0-2,4,6-7`, ascending; nothing for a text that is
/// no such list. Pure.
std::optional<std::vector<int>> ParseCpuList(absl::string_view text);

/// The reverse, of ascending numbers. Pure.
std::string CpuListText(const std::vector<int>& cpus);

}  // namespace fsdprun
