#pragma once

#include <atomic>
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
  /// bytes were taken. Blocks on the file system, which mostly notes only whom the room belongs to,
  /// and may take minutes; on any thread. Errors, with the folder, why, and what to do:
  /// UNAVAILABLE; CANCELLED by Stop(); FAILED_PRECONDITION if less than 1 MiB can be taken, if no
  /// file may get so large, or if the file system cannot give room away.
  absl::StatusOr<int64_t> Fill(const std::string& folder, int64_t leave_bytes);
  /// Has a Fill() of another thread end after what it takes just now.
  void Stop() { is_stopped_ = true; }

 private:
  absl::StatusOr<int64_t> TakeAllBut(const std::string& folder, int64_t leave_bytes);

  UniqueFd file_;
  std::atomic<bool> is_stopped_{false};
};

}  // namespace fsdprun::chaos
