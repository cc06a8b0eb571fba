#pragma once

#include "fsdp_runtime/archive/error.h"

namespace fsdprun::checkpoint {

/// The exception of this library, which is that of the archives it reads. Save, FindResume and Load
/// throw it with the same text on all ranks.
using CheckpointError = fsdp::archive::Error;

/// The checkpoint is intact but belongs to another model: trying again will not help.
class MismatchError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

}  // namespace fsdprun::checkpoint
