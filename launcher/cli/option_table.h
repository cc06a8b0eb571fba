#pragma once

#include <map>
#include <string>
#include <vector>

namespace fsdprun {

/// The environment of a process: name to value.
using Environment = std::map<std::string, std::string>;

/// torchrun's, of --signals-to-handle.
inline constexpr char kDefaultSignals[] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";

/// The programs whose options are described here; the others than the first two and kChaos, which
/// is a command of fsdprun, are commands of fsdpctl.
enum class CliProgram {
  kFsdprun,
  kFsdpAgent,
  kJobList,
  kJobStatus,
  kJobTop,
  kJobEvents,
  kJobLogs,
  kJobStacks,
  kJobSave,
  kJobRestart,
  kJobDrain,
  kJobScale,
  kJobStop,
  kSlurmSubmit,
  kSlurmGrow,
  kChaos,
  kDoctor,
  kCkptList,
  kCkptInspect,
  kCkptVerify,
  kCkptDiff,
  kCkptExport,
  kCkptImport,
  kCkptConvert
};
inline constexpr CliProgram kControlPrograms[] = {
    CliProgram::kJobList,     CliProgram::kJobStatus,  CliProgram::kJobTop,
    CliProgram::kJobEvents,   CliProgram::kJobLogs,    CliProgram::kJobStacks,
    CliProgram::kJobSave,     CliProgram::kJobRestart, CliProgram::kJobDrain,
    CliProgram::kJobScale,    CliProgram::kJobStop,    CliProgram::kSlurmSubmit,
    CliProgram::kSlurmGrow,   CliProgram::kDoctor,     CliProgram::kCkptList,
    CliProgram::kCkptInspect, CliProgram::kCkptVerify, CliProgram::kCkptDiff,
    CliProgram::kCkptExport,  CliProgram::kCkptImport, CliProgram::kCkptConvert};

const char* ProgramName(CliProgram program);
/// `fsdpctl slurm ...`: what is submitted runs a launcher.
bool IsSlurmCommand(CliProgram program);
/// Of fsdpctl, about a job that runs.
bool IsJobCommand(CliProgram program);
/// `fsdpctl ckpt ...`: about checkpoints on the disk.
bool IsCkptCommand(CliProgram program);
/// Of fsdpctl, with options and no other words than its operands.
bool TakesOptionsOnly(CliProgram program);

/// Whose name it is. A prefix of an option of torchrun means what it means there, whatever options
/// of our own begin with it.
enum class OptionFamily { kTorchrun, kOwn, kSbatch };

enum class OptionGroup {
  kWhichJob,
  kFaults,
  kBatchJob,
  kQueue,
  kNodes,
  kRendezvous,
  kAgents,
  kFailures,
  kStopping,
  kOutput,
  kProgram,
  kWorkers,
  kChecks,
  kPairTest,
  kCheckpoint,
  kOther
};

/// What the command line must look like, as argparse checks it; what else a value must be is
/// checked later.
enum class ValueKind { kSwitch, kText, kInteger, kNumber };

/// What a shell offers for the value.
enum class Completion { kNothing, kWords, kFile, kDirectory, kHost };

struct OptionSpec {
  const char* name;  ///< With dashes; underscores are accepted on the command line too.
  char letter = 0;   ///< 0 = none.
  OptionFamily family = OptionFamily::kTorchrun;
  OptionGroup group = OptionGroup::kOther;
  bool launcher_only = false;       ///< Not offered by fsdp-agent.
  bool agent_only = false;          ///< Offered by fsdp-agent alone.
  bool reads_variable = true;       ///< PET_<NAME>.
  const char* other_variable = "";  ///< Another one, which counts where there is no PET_<NAME>.
  ValueKind value = ValueKind::kText;
  const char* metavar = "";
  const char* default_text = "";  ///< Empty: nothing to say.
  Completion completion = Completion::kNothing;
  const char* words = "";  ///< Of kWords, separated by blanks.
  bool is_choice = false;  ///< Nothing but one of the words.
  const char* help = "";

  bool takes_value() const { return value != ValueKind::kSwitch; }
};

/// All options of the launcher and the agent, in the order of the help text. The parser, the help
/// text, the man page and the shells' completions are made from it.
const std::vector<OptionSpec>& OptionTable();

/// The options that the program offers, in the order of the help text: those of the table, and for
/// fsdpctl's commands sbatch's.
const std::vector<OptionSpec>& OptionsOf(CliProgram program);

/// `nproc-per-node` -> `PET_NPROC_PER_NODE`.
std::string OptionVariableName(const OptionSpec& option);

/// The variable that the texts name; empty: none.
std::string ShownVariable(const OptionSpec& option);

/// Where a value may come from besides the command line; empty: from nowhere else.
std::vector<std::string> VariablesOf(const OptionSpec& option);

/// Of the launcher and the agent: whether an option of the table is this program's.
bool Offers(CliProgram program, const OptionSpec& option);

struct OptionGroupTitle {
  OptionGroup group;
  const char* title;
};
/// All groups, in the order of the help text.
const std::vector<OptionGroupTitle>& OptionGroupTitles();

}  // namespace fsdprun
