#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// What srun says of tasks that have ended otherwise than well.
struct SrunTasksEnded {
  std::vector<std::string> nodes;
  /// In srun's words: `Exited with exit code 2`, `Killed`, `Node failure on node2`.
  std::string how;

  bool operator==(const SrunTasksEnded&) const = default;
};

/// `srun: error: node[2-3]: tasks 1-2: Exited with exit code 2`, and `srun: error: Node failure on
/// node2`, after which srun says nothing of that node's tasks; nothing for other lines. Pure.
std::optional<SrunTasksEnded> ReadTasksEnded(absl::string_view line);

/// The text of an error that srun tells of itself: `srun: error: TEXT`, `srun: fatal: TEXT`; empty
/// for other lines. Pure.
std::string ReadSrunError(absl::string_view line);

/// Whether that text says that Slurm's controller does not answer now. Pure.
bool IsControllerAway(absl::string_view srun_error);

/// What to do about a step that could not be started, by that text; `job` is SLURM_JOB_ID. Pure.
std::string StepAdvice(absl::string_view srun_error, absl::string_view job);

}  // namespace fsdprun
