#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "fsdpctl/jobs/job_client.h"
#include "fsdpctl/jobs/job_options.h"
#include "fsdpctl/run/commands.h"
#include "launcher/control/job_file.h"

namespace fsdprun {

// What the commands about running jobs have in common.

using JobRun = std::function<absl::Status(const JobOptions&, const Environment&)>;

/// Reads the command's options, prints the texts that are asked for, runs it, and says errors.
/// Returns the exit code.
int RunJobCommand(CliProgram program, const ControlContext& context, const JobRun& run);

std::vector<JobEntry> LocalJobs(const Environment& environment);

/// Finds the job that the options mean, and asks it; see AskJob(). Blocks.
absl::Status AskChosenJob(const JobOptions& options, const Environment& environment,
                          const v1::ControlQuestion& question,
                          const std::function<void(const v1::ControlAnswer&)>& on_answer,
                          std::optional<std::chrono::milliseconds> limit = std::nullopt,
                          CallStop* stop = nullptr);

/// On standard output.
void ShowDone(const v1::ControlAnswer& answer);

}  // namespace fsdprun
