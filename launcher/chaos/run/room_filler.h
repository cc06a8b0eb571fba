#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace fsdprun::chaos {

/// Takes the room of a file system, by a file that has no name: it is gone with this object, and
/// with this process whatever ends it.
class RoomFiller {
 public:
  /// Leaves `leave_bytes` to users without privileges; returns how many bytes were taken. May block
  /// on the file system. Errors: UNAVAILABLE, with the folder and why.
  absl::StatusOr<int64_t> Fill(const std::string& folder, int64_t leave_bytes);

 private:
  UniqueFd file_;
};

}  // namespace fsdprun::chaos
