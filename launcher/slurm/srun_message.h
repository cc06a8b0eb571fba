#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// What srun says of tasks that have ended otherwise than well.
struct SrunTasksEnded {
  std::vector<std::string> nodes;
  /// In srun's words: `Exited with exit code 2`, `Killed`.
  std::string how;

  bool operator==(const SrunTasksEnded&) const = default;
};

/// `srun: error: node[2-3]: tasks 1-2: Exited with exit code 2`; nothing for other lines. Pure.
std::optional<SrunTasksEnded> ReadTasksEnded(absl::string_view line);

/// The text of an error that srun tells of itself: `srun: error: TEXT`, `srun: fatal: TEXT`; empty
/// for other lines. Pure.
std::string ReadSrunError(absl::string_view line);

}  // namespace fsdprun
