#pragma once

#include <memory>
#include <string>

#include "formats/tensors/tensor_source.h"

namespace fsdprun {

enum class TensorLayout { kDcp, kSafetensors, kShardedSafetensors };

/// What lies at `path`. Errors: fsdp::archive::Error if it is nothing that is read here; it says so
/// if that is a folder of checkpoints.
TensorLayout LayoutOf(const std::string& path);

/// Errors: as LayoutOf's, and of the files.
std::unique_ptr<TensorSource> OpenTensors(const std::string& path);

/// How the layout is called in what is printed.
const char* LayoutName(TensorLayout layout);

}  // namespace fsdprun
