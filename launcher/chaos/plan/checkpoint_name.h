#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace fsdprun::chaos {

/// The number of a checkpoint that is complete, by the name of its folder or file: `step-12`,
/// `checkpoint_500`, `epoch3.pt`. Nothing for other names: what is still being written, or is to be
/// removed, has more in its name (`step-12.tmp-3`, `part-step-12`), or begins with a dot. Pure.
std::optional<int64_t> CheckpointNumber(absl::string_view name);

}  // namespace fsdprun::chaos
