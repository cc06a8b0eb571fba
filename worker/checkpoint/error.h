#pragma once

#include <stdexcept>
#include <string>

namespace fsdprun::worker::checkpoint {

/// The exception of this library: one line that says what was attempted, on which file or
/// tensor, and what to do next. Save, FindResume and Load throw it with the same text on all ranks.
class CheckpointError : public std::runtime_error {
 public:
  explicit CheckpointError(const std::string& message) : std::runtime_error(message) {}
};

/// The checkpoint is intact, but it is not one of this model: trying again will not help.
class MismatchError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

}  // namespace fsdprun::worker::checkpoint
