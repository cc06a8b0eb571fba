#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"

namespace fsdprun::chaos {

/// Flips bytes of the newest checkpoint in a folder, of those with a number in their names
/// (CheckpointNumber()). A checkpoint is damaged once, until the job writes it anew, and only if
/// another one in the folder is not: a job without any has nothing to fall back to. Thread: any,
/// one at a time.
class CheckpointDamage {
 public:
  /// `pick` chooses the bytes. `is_wanted` is asked before each of them is flipped: the file system
  /// may have taken so long that nobody wants it any more. Returns the path of the file, also if
  /// not all were flipped. May block on the file system. Errors, with nothing flipped: CANCELLED;
  /// FAILED_PRECONDITION if there is no such checkpoint now, UNAVAILABLE with the file and why.
  absl::StatusOr<std::string> Flip(const std::string& folder, uint64_t pick,
                                   const std::function<bool()>& is_wanted);

 private:
  /// A file as it was left.
  struct Damaged {
    std::string file;
    struct stat info {};
  };

  bool IsDamaged(const std::string& checkpoint) const;

  /// By the path of the checkpoint.
  std::map<std::string, Damaged> damaged_;
};

}  // namespace fsdprun::chaos
