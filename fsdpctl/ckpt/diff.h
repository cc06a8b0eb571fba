#pragma once

#include <string>

#include "fsdpctl/ckpt/report.h"

namespace fsdprun::ckpt {

/// Compares keys, dtypes, shapes and values of the tensors of two checkpoints or models; memory
/// does not depend on their size. Between a DCP checkpoint and another layout its weights are
/// compared ("model." is left out of their keys). Not good: there is a difference. Errors:
/// std::runtime_error naming the file.
Report DiffCheckpoints(const std::string& a, const std::string& b);

}  // namespace fsdprun::ckpt
