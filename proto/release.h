#pragma once

namespace fsdprun {

/// Of all programs: they are built and installed together.
inline constexpr char kRelease[] = "0.1.0";

}  // namespace fsdprun
