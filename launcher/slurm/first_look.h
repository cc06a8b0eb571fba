#pragma once

#include <string>

#include "base/mono_time.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// How long after its start a launcher first asks Slurm's controller for `job`. One srun starts as
/// many launchers as it has tasks, which would all ask in the same moment: job, step and task say
/// which one waits for how long. Pure.
Duration FirstLook(const std::string& job, const Environment& environment);

}  // namespace fsdprun
