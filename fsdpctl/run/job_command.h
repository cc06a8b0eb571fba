#pragma once

#include <functional>

#include "absl/status/status.h"
#include "fsdpctl/jobs/job_options.h"
#include "fsdpctl/run/commands.h"
#include "fsdprun/v1/control.pb.h"
#include "launcher/cli/option_table.h"

namespace fsdprun {

// What the commands about a running job have in common.

using JobRun = std::function<absl::Status(const JobOptions&, const Environment&)>;

/// Reads the command's options and runs it, or prints the text that is asked for instead. Says
/// errors, and returns the exit code.
int RunJobCommand(CliProgram program, const ControlContext& context, const JobRun& run);

/// Finds the job that the options name, and asks it; see AskJob(). Blocks.
absl::Status AskChosenJob(const JobOptions& options, const Environment& environment,
                          const v1::ControlQuestion& question,
                          const std::function<void(const v1::ControlAnswer&)>& on_answer);

/// On standard output.
void ShowDone(const v1::ControlAnswer& answer);

}  // namespace fsdprun
