#pragma once

#include <string>

namespace fsdprun::worker {

/// The state of torch's default CPU generator, hexadecimal.
std::string CaptureRng();
/// Errors: ConfigError if `rng` is not what CaptureRng returns.
void RestoreRng(const std::string& rng);

}  // namespace fsdprun::worker
