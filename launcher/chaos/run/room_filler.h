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
  /// Leaves `leave_bytes` to this user, of whom root may take more than others; returns how many
  /// bytes were taken. May block on the file system, which only notes whom the room belongs to.
  /// Errors, with the folder, why, and what to do: UNAVAILABLE; FAILED_PRECONDITION if less than
  /// 1 MiB can be taken, or if the file system cannot give room away.
  absl::StatusOr<int64_t> Fill(const std::string& folder, int64_t leave_bytes);

 private:
  absl::StatusOr<int64_t> TakeAllBut(const std::string& folder, int64_t leave_bytes);

  UniqueFd file_;
};

}  // namespace fsdprun::chaos
