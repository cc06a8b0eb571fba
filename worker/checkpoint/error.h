#pragma once

#include <stdexcept>
#include <string>

namespace fsdprun::worker::checkpoint {

/// The only exception of this library: one line that says what was attempted, on which file or
/// tensor, and what to do next. Save, FindResume and Load throw it with the same text on all ranks.
class CheckpointError : public std::runtime_error {
 public:
  explicit CheckpointError(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace fsdprun::worker::checkpoint
