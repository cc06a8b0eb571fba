#pragma once

#include <c10/core/ScalarType.h>

#include "fsdp_runtime/archive/saved_tensor.h"

namespace fsdp {

/// As LibTorch has it.
at::ScalarType dtype_of(const archive::ElementType& type);

/// Whether tensors of the type can be written so that Python reads them: those that have a storage
/// class.
bool can_be_saved(at::ScalarType dtype);

}  // namespace fsdp
