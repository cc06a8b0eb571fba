#pragma once

#include <cstdint>
#include <string>

#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

/// The checkpoints of a folder, newest first, and who has claimed it. `now_s`: seconds since 1970,
/// for their age. Reads only. Errors: std::runtime_error if the folder cannot be read.
Report ListCheckpoints(const std::string& directory, int64_t now_s);

}  // namespace fsdprun::ckpt
