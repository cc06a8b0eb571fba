#pragma once

#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

/// What the job will have of the variables of this shell, by sbatch's --export: ALL, NONE, NIL, or
/// names and `NAME=value`, separated by commas. Pure.
Environment ExportedEnvironment(const Environment& environment, absl::string_view exported);

/// For sbatch: without the variables that would overrule the batch file, which has their values
/// where they count, and without those of the job that this process may be in, which the new job
/// would take for its own. Pure.
Environment SbatchEnvironment(Environment environment);

}  // namespace fsdprun
