#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace fsdprun::chaos {

/// Flips bytes of the newest checkpoint in a folder, of those with a number in their names
/// (CheckpointNumber()). A checkpoint is damaged once, and only if another one in the folder is
/// not: a job without any has nothing to fall back to.
class CheckpointDamage {
 public:
  /// `pick` chooses the bytes. Returns the path of the file. May block on the file system. Errors:
  /// FAILED_PRECONDITION if there is no such checkpoint now, UNAVAILABLE with the file and why.
  absl::StatusOr<std::string> Flip(const std::string& folder, uint64_t pick);

 private:
  /// Paths of damaged checkpoints.
  std::set<std::string> damaged_;
};

}  // namespace fsdprun::chaos
