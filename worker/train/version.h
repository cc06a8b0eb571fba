#pragma once

namespace fsdprun::worker {

/// The version of fsdp-train. All ranks of a job run the same.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace fsdprun::worker
