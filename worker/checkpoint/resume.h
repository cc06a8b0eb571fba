#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// Checkpoints that a run may go back to.
struct OfRun {
  /// As State::run.
  std::string run;
  /// Those that it has saved, or gone on from, since it was started. Others of the run may be of a
  /// course that somebody has left by naming an older checkpoint.
  std::set<int64_t> steps;
  /// Of no later step.
  int64_t step_max = 0;
};

/// Of several checkpoints in `dir`, those that the run may go back to: the one published last that
/// verifies; nullopt if there is none. Collective, as FindResume; what rank 0 asks for counts.
/// Errors: CheckpointError if there are some but none verifies.
std::optional<Candidate> FindOfRun(const std::string& dir, const OfRun& wanted, const Group& group,
                                   Verify verify, const Unloadable& unloadable);

/// "a/b" of "a/b//".
std::string WithoutTrailingSlash(std::string path);

}  // namespace fsdprun::checkpoint
