#pragma once

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <utility>

namespace fsdprun::worker::checkpoint {

/// The exception of this library: one line that says what was attempted, on which file or
/// tensor, and what to do next; control characters, which quoted names may hold, are replaced.
/// Save, FindResume and Load throw it with the same text on all ranks.
class CheckpointError : public std::runtime_error {
 public:
  explicit CheckpointError(std::string message, int error_number = 0)
      : std::runtime_error(OneLine(std::move(message))), error_number_(error_number) {}

  /// The errno of the call that failed; 0: it was no system call.
  int error_number() const { return error_number_; }

 private:
  static std::string OneLine(std::string message) {
    std::replace_if(
        message.begin(), message.end(),
        [](char c) { return std::iscntrl(static_cast<unsigned char>(c)) != 0; }, '?');
    return message;
  }

  int error_number_;
};

/// The checkpoint is intact but belongs to another model: trying again will not help.
class MismatchError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

}  // namespace fsdprun::worker::checkpoint
