#include "launcher/cli/option_groups.h"

// sbatch's own options, of those that jobs of several nodes use, under sbatch's names. Letters that
// the launcher's options have are the launcher's.

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

/// How much of which nodes.
std::vector<OptionSpec> ResourceOptions() {
  return {
      {.name = "nodes",
       .letter = 'N',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "N|MIN:MAX",
       .default_text = "submit: --nnodes, else 1; grow: 1",
       .help = "Nodes that Slurm is asked for."},
      {.name = "gpus-per-node",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_GPUS_PER_NODE",
       .metavar = "[TYPE:]N",
       .help = "GPUs of each node. Without --nproc-per-node each of them gets a worker."},
      {.name = "gres",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_GRES",
       .metavar = "LIST",
       .help = "Other resources of each node."},
      {.name = "cpus-per-task",
       .letter = 'c',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "N",
       .help = "CPUs of each node; the task is the node's agent, and its workers share them."},
      {.name = "mem",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_MEM_PER_NODE",
       .metavar = "SIZE[K|M|G|T]",
       .help = "Memory of each node; 0: all of it."},
      {.name = "exclusive",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Share the nodes with no other job."},
      {.name = "constraint",
       .letter = 'C',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_CONSTRAINT",
       .metavar = "FEATURES",
       .help = "Features that the nodes must have."},
      {.name = "nodelist",
       .letter = 'w',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "NODES",
       .help = "Nodes that must be among those of the job."},
      {.name = "exclude",
       .letter = 'x',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "NODES",
       .help = "Nodes that must not."},
  };
}

/// On whose account, for how long, under which name.
std::vector<OptionSpec> AccountOptions() {
  return {
      {.name = "partition",
       .letter = 'p',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_PARTITION",
       .metavar = "NAME,...",
       .help = "Partitions that the job may run in."},
      {.name = "account",
       .letter = 'A',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_ACCOUNT",
       .metavar = "NAME",
       .help = "Account that is charged."},
      {.name = "qos",
       .letter = 'q',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_QOS",
       .metavar = "NAME",
       .help = "Quality of service."},
      {.name = "reservation",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_RESERVATION",
       .metavar = "NAME,...",
       .help = "Reservations that the nodes are taken from."},
      {.name = "time",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_TIMELIMIT",
       .metavar = "[DAYS-]HH:MM:SS|MINUTES",
       .default_text = "the partition's",
       .help = "Time limit. (sbatch's -t is --tee here.)"},
      {.name = "job-name",
       .letter = 'J',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_JOB_NAME",
       .metavar = "NAME",
       .default_text = "submit: the program's; grow: grow-JOBID",
       .help = "Name of the job."},
      {.name = "comment",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "TEXT",
       .help = "Kept with the job."},
  };
}

/// Where its output goes, and what it begins with.
std::vector<OptionSpec> FileOptions() {
  return {
      {.name = "output",
       .letter = 'o',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_OUTPUT",
       .metavar = "PATTERN",
       .default_text = "%x-%j.out, with --array %x-%A_%a.out",
       .completion = C::kFile,
       .help = "File of the launcher's and the workers' output: what a terminal would show."},
      {.name = "error",
       .letter = 'e',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_ERROR",
       .metavar = "PATTERN",
       .default_text = "that of --output",
       .completion = C::kFile,
       .help = "Another file for standard error."},
      {.name = "chdir",
       .letter = 'D',
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "DIR",
       .default_text = "this folder",
       .completion = C::kDirectory,
       .help = "Folder that the batch file begins in."},
      {.name = "export",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .other_variable = "SBATCH_EXPORT",
       .metavar = "ALL|NONE|NAME[=VALUE],...",
       .default_text = "ALL",
       .help = "Variables of this shell that the job has."},
      {.name = "mail-type",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "BEGIN,END,FAIL,...",
       .help = "What is mailed."},
      {.name = "mail-user",
       .family = F::kSbatch,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "ADDRESS",
       .help = "To whom."},
  };
}

/// Not sbatch's, or not of its files.
std::vector<OptionSpec> FurtherOptions() {
  return {
      {.name = "sbatch-args",
       .family = F::kOwn,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "OPTIONS",
       .help = "Further options of sbatch, separated by blanks (--sbatch-args='--licenses=a:1 "
               "--nice')."},
      {.name = "setup",
       .family = F::kOwn,
       .group = G::kBatchJob,
       .reads_variable = false,
       .metavar = "SHELL",
       .help = "Lines of bash that the batch file runs first: module load cuda; source env/bin/"
               "activate."},
      {.name = "parsable",
       .family = F::kOwn,
       .group = G::kBatchJob,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "Print nothing but the job's id (and, as sbatch, ;CLUSTER where there are several)."},
  };
}

/// What may happen to it before its end.
std::vector<OptionSpec> InterruptionOptions() {
  return {
      {.name = "signal",
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .other_variable = "SBATCH_SIGNAL",
       .metavar = "[B:]NAME[@SECONDS]",
       .default_text = "none, with --requeue B:USR1@120, or a quarter of --time",
       .help =
           "Signal that Slurm sends so long before the time limit, up to 60 s earlier. B: to the "
           "launcher alone, which passes it on; without, to every process of the job."},
      {.name = "open-mode",
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .other_variable = "SBATCH_OPEN_MODE",
       .metavar = "append|truncate",
       .default_text = "the cluster's, with --requeue append",
       .completion = C::kWords,
       .words = "append truncate",
       .is_choice = true,
       .help = "What becomes of an output file that is there: that of the job's last run."},
      {.name = "no-kill",
       .letter = 'k',
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off, with --nnodes MIN:MAX on",
       .help = "The job goes on when one of its nodes is lost."},
  };
}

/// When it starts, and how often.
std::vector<OptionSpec> StartOptions() {
  return {
      {.name = "array",
       .letter = 'a',
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .other_variable = "SBATCH_ARRAY_INX",
       .metavar = "INDEXES[%N]",
       .help = "Many jobs of this kind; each is a distributed job of its own."},
      {.name = "dependency",
       .letter = 'd',
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .metavar = "TYPE:JOBID,...",
       .help = "What must have happened to other jobs first."},
      {.name = "begin",
       .letter = 'b',
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .metavar = "TIME",
       .help = "When the job may start."},
      {.name = "hold",
       .letter = 'H',
       .family = F::kSbatch,
       .group = G::kQueue,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "The job waits for scontrol release."},
  };
}

}  // namespace

std::vector<OptionSpec> BatchJobOptions() {
  std::vector<OptionSpec> all;
  for (const auto& part : {ResourceOptions(), AccountOptions(), FileOptions(), FurtherOptions()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

std::vector<OptionSpec> QueueOptions() {
  std::vector<OptionSpec> all = InterruptionOptions();
  for (const OptionSpec& option : StartOptions()) {
    all.push_back(option);
  }
  return all;
}

}  // namespace fsdprun
