#include "launcher/cli/option_table.h"

#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using G = OptionGroup;

/// Of `options`, those that are the program's.
void Append(CliProgram program, const std::vector<OptionSpec>& options,
            std::vector<OptionSpec>* all) {
  for (const OptionSpec& option : options) {
    if (Offers(program, option)) {
      all->push_back(option);
    }
  }
}

std::vector<OptionSpec> MakeOptions(CliProgram program) {
  std::vector<OptionSpec> all;
  if (IsSlurmCommand(program)) {
    Append(program, BatchJobOptions(), &all);
  }
  if (program == CliProgram::kSlurmSubmit) {
    Append(program, QueueOptions(), &all);
  }
  if (IsJobCommand(program)) {
    Append(program, JobCommandOptions(program), &all);
  }
  if (program == CliProgram::kChaos) {
    Append(program, ChaosOptionSpecs(), &all);
    return all;
  }
  if (program == CliProgram::kDoctor) {
    Append(program, DoctorOptionSpecs(), &all);
  }
  if (IsCkptCommand(program)) {
    Append(program, CkptOptionSpecs(program), &all);
  }
  const bool is_launch = !TakesOptionsOnly(program) && program != CliProgram::kSlurmGrow;
  Append(program, is_launch ? OptionTable() : OtherOptions(), &all);
  return all;
}

}  // namespace

const char* ProgramName(CliProgram program) {
  switch (program) {
    case CliProgram::kFsdprun:
      return "fsdprun";
    case CliProgram::kFsdpAgent:
      return "fsdp-agent";
    case CliProgram::kJobList:
      return "fsdpctl ps";
    case CliProgram::kJobStatus:
      return "fsdpctl status";
    case CliProgram::kJobTop:
      return "fsdpctl top";
    case CliProgram::kJobEvents:
      return "fsdpctl events";
    case CliProgram::kJobLogs:
      return "fsdpctl logs";
    case CliProgram::kJobStacks:
      return "fsdpctl stacks";
    case CliProgram::kJobSave:
      return "fsdpctl checkpoint now";
    case CliProgram::kJobRestart:
      return "fsdpctl restart";
    case CliProgram::kJobDrain:
      return "fsdpctl drain";
    case CliProgram::kJobScale:
      return "fsdpctl scale";
    case CliProgram::kJobStop:
      return "fsdpctl stop";
    case CliProgram::kSlurmSubmit:
      return "fsdpctl slurm submit";
    case CliProgram::kSlurmGrow:
      return "fsdpctl slurm grow";
    case CliProgram::kChaos:
      return "fsdprun chaos";
    case CliProgram::kDoctor:
      return "fsdpctl doctor";
    case CliProgram::kCkptList:
      return "fsdpctl ckpt list";
    case CliProgram::kCkptInspect:
      return "fsdpctl ckpt inspect";
    case CliProgram::kCkptVerify:
      return "fsdpctl ckpt verify";
    case CliProgram::kCkptDiff:
      return "fsdpctl ckpt diff";
    case CliProgram::kCkptExport:
      return "fsdpctl ckpt export";
    case CliProgram::kCkptImport:
      return "fsdpctl ckpt import";
    case CliProgram::kCkptConvert:
      return "fsdpctl ckpt convert";
  }
  return "";
}

bool IsSlurmCommand(CliProgram program) {
  return program == CliProgram::kSlurmSubmit || program == CliProgram::kSlurmGrow;
}

bool IsJobCommand(CliProgram program) {
  return program >= CliProgram::kJobList && program <= CliProgram::kJobStop;
}

bool IsCkptCommand(CliProgram program) {
  return program >= CliProgram::kCkptList && program <= CliProgram::kCkptConvert;
}

bool TakesOptionsOnly(CliProgram program) {
  return IsJobCommand(program) || program == CliProgram::kDoctor || IsCkptCommand(program);
}

const std::vector<OptionSpec>& OptionTable() {
  static const std::vector<OptionSpec> table = [] {
    std::vector<OptionSpec> all;
    for (const auto& part :
         {NodeOptions(), RendezvousOptions(), SecurityOptions(), CoordinatorOptions(),
          AgentsOptions(), SshOptionSpecs(), DaemonOptionSpecs(), FailureOptions(),
          QuarantineOptions(), WatchOptions(), StopOptions(), LogOptions(), ProgramOptions(),
          WorkerOptions(), OtherOptions()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

const std::vector<OptionSpec>& OptionsOf(CliProgram program) {
  static const std::map<CliProgram, std::vector<OptionSpec>> all = [] {
    std::map<CliProgram, std::vector<OptionSpec>> options;
    for (const CliProgram each :
         {CliProgram::kFsdprun, CliProgram::kFsdpAgent, CliProgram::kChaos}) {
      options[each] = MakeOptions(each);
    }
    for (const CliProgram each : kControlPrograms) {
      options[each] = MakeOptions(each);
    }
    return options;
  }();
  return all.at(program);
}

const std::vector<OptionGroupTitle>& OptionGroupTitles() {
  static const std::vector<OptionGroupTitle> titles = {
      {G::kWhichJob, "Which job"},
      {G::kFaults, "Faults"},
      {G::kBatchJob, "The batch job, as for sbatch"},
      {G::kQueue, "Its life in the queue"},
      {G::kNodes, "Nodes and workers"},
      {G::kRendezvous, "Rendezvous"},
      {G::kAgents, "Daemons"},
      {G::kFailures, "Failures"},
      {G::kStopping, "Stopping"},
      {G::kOutput, "Logs"},
      {G::kProgram, "What to run"},
      {G::kWorkers, "Worker processes"},
      {G::kChecks, "What is looked at"},
      {G::kPairTest, "Between nodes"},
      {G::kCheckpoint, "Checkpoints"},
      {G::kOther, "Other"},
  };
  return titles;
}

std::string OptionVariableName(const OptionSpec& option) {
  return absl::StrCat("PET_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(option.name, {{"-", "_"}})));
}

std::string ShownVariable(const OptionSpec& option) {
  const std::vector<std::string> names = VariablesOf(option);
  return names.empty() ? "" : names.front();
}

std::vector<std::string> VariablesOf(const OptionSpec& option) {
  std::vector<std::string> names;
  if (option.reads_variable) {
    names.push_back(OptionVariableName(option));
  }
  if (*option.other_variable != '\0') {
    names.emplace_back(option.other_variable);
  }
  return names;
}

bool Offers(CliProgram program, const OptionSpec& option) {
  const absl::string_view name = option.name;
  // A shell completes the words of fsdpctl, not those of one of its commands.
  if (TakesOptionsOnly(program)) {
    return name != "completion" && name != "dry-run";
  }
  // The shell completes the words of fsdprun.
  if (program == CliProgram::kChaos) {
    return name != "completion";
  }
  // A batch job has workers.
  if (IsSlurmCommand(program)) {
    return option.group != G::kAgents && name != "completion" && name != "coordinator" &&
           name != "journal";
  }
  return program == CliProgram::kFsdprun ? !option.agent_only : !option.launcher_only;
}

}  // namespace fsdprun
