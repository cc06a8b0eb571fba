#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::chaos {

/// A folder for what the processes of a disturbed job leave, as their TMPDIR: what is killed does
/// not clear up. It goes with this object. One whose program was killed goes when the next is made,
/// unless a process still has it as its TMPDIR. Thread: any.
class ScratchFolder {
 public:
  /// Below TMPDIR of `environment`. Errors: UNAVAILABLE, with the folder, why, and what to do.
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Make(const Environment& environment);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  ScratchFolder(std::string path, UniqueFd lock);

  const std::string path_;
  /// Held as long as this program lives.
  const UniqueFd lock_;
};

}  // namespace fsdprun::chaos
