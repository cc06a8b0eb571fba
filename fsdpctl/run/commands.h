#pragma once

#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

struct ControlContext {
  /// What follows the command's name.
  std::vector<std::string> args;
  Environment environment;
  /// How other programs and other nodes call this program, and the launcher.
  std::string fsdpctl;
  std::string fsdprun;
};

/// Runs the command that the arguments name and returns the exit code.
int RunControl(int argc, char** argv, char** environ_pointer);

// Commands. Each prints what it has to say and returns the exit code.

int JobList(const ControlContext& context);
int JobStatus(const ControlContext& context);
int JobTop(const ControlContext& context);
int JobEvents(const ControlContext& context);
int JobLogs(const ControlContext& context);
int JobStacks(const ControlContext& context);
int JobSave(const ControlContext& context);
int JobRestart(const ControlContext& context);
int JobDrain(const ControlContext& context);
int JobScale(const ControlContext& context);
int JobStop(const ControlContext& context);
int SlurmSubmit(const ControlContext& context);
int SlurmGrow(const ControlContext& context);
/// In the batch file of a job that SlurmGrow() has submitted: becomes the srun that starts an agent
/// on each of its nodes.
int SlurmJoin(const ControlContext& context);
/// What on this machine, or between nodes, will hinder a job.
int Doctor(const ControlContext& context);
// Checkpoints on the disk; nothing that they hold is executed.
int CkptList(const ControlContext& context);
int CkptInspect(const ControlContext& context);
int CkptVerify(const ControlContext& context);
int CkptDiff(const ControlContext& context);
int CkptExport(const ControlContext& context);
int CkptImport(const ControlContext& context);
int CkptConvert(const ControlContext& context);

}  // namespace fsdprun
