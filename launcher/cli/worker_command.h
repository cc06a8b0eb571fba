#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// `${local_rank}` and `$local_rank` become the number; see SubstituteNames().
std::string SubstituteLocalRank(absl::string_view argument, int local_rank);

/// The command line of the worker with this local rank. `python` is the interpreter's path (unused
/// for executables); empty: the script is a program that runs itself.
std::vector<std::string> WorkerCommand(const LaunchPlan& plan, absl::string_view python,
                                       int local_rank);

}  // namespace fsdprun
