#pragma once

#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

// The parts of OptionTable(), one for each group of the help text, and those of fsdpctl.

std::vector<OptionSpec> NodeOptions();
std::vector<OptionSpec> RendezvousOptions();
/// Of the rendezvous, too.
std::vector<OptionSpec> SecurityOptions();
std::vector<OptionSpec> CoordinatorOptions();
/// Of jobs that daemons run.
std::vector<OptionSpec> AgentsOptions();
/// Of jobs whose nodes are started with ssh.
std::vector<OptionSpec> SshOptionSpecs();
/// Of a daemon.
std::vector<OptionSpec> DaemonOptionSpecs();
std::vector<OptionSpec> FailureOptions();
/// Of failures, too.
std::vector<OptionSpec> QuarantineOptions();
/// Of hangs and slow ranks: of failures, too.
std::vector<OptionSpec> WatchOptions();
std::vector<OptionSpec> StopOptions();
std::vector<OptionSpec> LogOptions();
std::vector<OptionSpec> ProgramOptions();
std::vector<OptionSpec> WorkerOptions();
std::vector<OptionSpec> OtherOptions();
std::vector<OptionSpec> BatchJobOptions();
std::vector<OptionSpec> QueueOptions();
/// Of a command about a running job.
std::vector<OptionSpec> JobCommandOptions(CliProgram program);
/// Of `fsdprun chaos`.
std::vector<OptionSpec> ChaosOptionSpecs();
/// Of fsdpctl doctor.
std::vector<OptionSpec> DoctorOptionSpecs();
/// Of a command fsdpctl ckpt.
std::vector<OptionSpec> CkptOptionSpecs(CliProgram program);

}  // namespace fsdprun
