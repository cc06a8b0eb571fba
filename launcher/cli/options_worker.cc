#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

}  // namespace

std::vector<OptionSpec> LogOptions() {
  return {
      {.name = "log-dir",
       .group = G::kOutput,
       .metavar = "DIR",
       .default_text = "temporary, removed after success",
       .completion = C::kDirectory,
       .help = "Where DIR/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,"
               "error.json} are written; /dev/null: nowhere."},
      {.name = "redirects",
       .letter = 'r',
       .group = G::kOutput,
       .metavar = "STREAMS",
       .default_text = "0",
       .completion = C::kWords,
       .words = "0 1 2 3",
       .help = "Streams that go to a file and not to the console: 0 none, 1 standard output, 2 "
               "standard error, 3 both, or LOCAL_RANK:STREAMS,... for single workers. With this or "
               "--tee only the files that they name are kept."},
      {.name = "tee",
       .letter = 't',
       .group = G::kOutput,
       .metavar = "STREAMS",
       .default_text = "0",
       .completion = C::kWords,
       .words = "0 1 2 3",
       .help =
           "Streams that go to a file and, with the prefix [<role><local rank>]:, to the "
           "console; written as for --redirects, and stronger. "
           "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE is another prefix, with ${role_name}, ${rank} "
           "and ${local_rank}."},
      {.name = "local-ranks-filter",
       .group = G::kOutput,
       .metavar = "N,...",
       .default_text = "all",
       .help = "Local ranks that the console shows. Files are not affected."},
      {.name = "duplicate-stdout-filters",
       .group = G::kOutput,
       .metavar = "TEXT,...",
       .default_text = "none",
       .help = "Lines of tee'd standard output with one of these texts (,, is a comma) also go to "
               "attempt_<n>/filtered_stdout.log, with their prefix."},
      {.name = "duplicate-stderr-filters",
       .group = G::kOutput,
       .metavar = "TEXT,...",
       .default_text = "none",
       .help = "The same for standard error and filtered_stderr.log."},
      {.name = "event-log-handler",
       .group = G::kOutput,
       .metavar = "null|console|dynamic_rendezvous",
       .default_text = "null",
       .completion = C::kWords,
       .words = "null console dynamic_rendezvous",
       .help = "console: one JSON line on standard error for each change of the agent's and the "
               "workers' states, with torchrun's fields. Others are plugins in Python."},
      {.name = "logs-specs",
       .group = G::kOutput,
       .reads_variable = false,
       .metavar = "NAME",
       .default_text = "default",
       .completion = C::kWords,
       .words = "default",
       .help = "Accepted for compatibility: default is the only one, because others are plugins in "
               "Python."},
  };
}

std::vector<OptionSpec> ProgramOptions() {
  return {
      {.name = "accelerate-config",
       .family = F::kOwn,
       .group = G::kProgram,
       .reads_variable = false,
       .metavar = "FILE",
       .default_text = "none",
       .completion = C::kFile,
       .help =
           "Nodes, workers and variables as accelerate launch --config_file FILE has them. What "
           "the command line says counts before the file. See docs/ACCELERATE.md."},
      {.name = "module",
       .letter = 'm',
       .group = G::kProgram,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "The program is a Python module (python -u -m)."},
      {.name = "no-python",
       .group = G::kProgram,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "The program is an executable, not a Python script. An ELF file is one without this, "
           "too."},
      {.name = "run-path",
       .group = G::kProgram,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "The program is a Python script, whatever --module and --no-python say."},
      {.name = "start-method",
       .group = G::kProgram,
       .metavar = "spawn|fork|forkserver",
       .default_text = "spawn",
       .completion = C::kWords,
       .words = "spawn fork forkserver",
       .is_choice = true,
       .help = "Accepted for compatibility; has no effect, because workers are programs and no "
               "functions of Python."},
      {.name = "use-env",
       .family = F::kOwn,
       .group = G::kProgram,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "on, except with --compat=launch",
       .help = "Of torch.distributed.launch: workers learn their local rank from LOCAL_RANK only."},
      {.name = "compat",
       .family = F::kOwn,
       .group = G::kProgram,
       .metavar = "torchrun|launch",
       .default_text = "torchrun",
       .completion = C::kWords,
       .words = "torchrun launch",
       .is_choice = true,
       .help = "launch: as python -m torch.distributed.launch, each worker's first argument is "
               "--local-rank=N, unless --use-env is given."},
  };
}

std::vector<OptionSpec> WorkerOptions() {
  return {
      {.name = "virtual-local-rank",
       .group = G::kWorkers,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "Each worker sees one GPU and has LOCAL_RANK 0: CUDA_VISIBLE_DEVICES is its entry of "
           "this process's list, or its local rank where there is no list."},
      {.name = "numa-binding",
       .group = G::kWorkers,
       .reads_variable = false,
       .metavar = "node|socket|exclusive|core-complex",
       .default_text = "none",
       .completion = C::kWords,
       .words = "node socket exclusive core-complex",
       .is_choice = true,
       .help =
           "CPUs that each worker may use: those near its GPU, or without GPUs those of its share "
           "of the machine. exclusive: cores of its own; core-complex: one L3 cache."},
      {.name = "omp-threads",
       .family = F::kOwn,
       .group = G::kWorkers,
       .metavar = "N|auto",
       .default_text = "1 if there are several workers, else not set",
       .completion = C::kWords,
       .words = "auto",
       .help = "OMP_NUM_THREADS of the workers, where it is not set; auto: usable CPUs divided by "
               "workers."},
      {.name = "stdin",
       .family = F::kOwn,
       .group = G::kWorkers,
       .metavar = "inherit|rank0|none",
       .default_text = "inherit",
       .completion = C::kWords,
       .words = "inherit rank0 none",
       .is_choice = true,
       .help =
           "What workers read as standard input: this program's, all of them, as with torchrun; "
           "rank0: local rank 0 alone; none: /dev/null."},
      {.name = "keep-slurm-env",
       .family = F::kOwn,
       .group = G::kWorkers,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "Where the nodes come from Slurm, leave the variables of this program's own task and "
           "step (SLURM_PROCID, SLURM_LOCALID, SLURM_NTASKS, SLURM_STEP_*, PMI* and the like) in "
           "the workers' environment. Libraries would take them for the worker's ranks; "
           "PyTorch-Ignite "
           "wants them wherever it finds SLURM_JOB_ID. The variables of the job (SLURM_JOB_*, "
           "SLURM_ARRAY_*) stay anyway, and so do all of them where the "
           "command line says itself who takes part."},
  };
}

std::vector<OptionSpec> OtherOptions() {
  return {
      {.name = "dry-run",
       .family = F::kOwn,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Print what would be done and exit."},
      {.name = "completion",
       .family = F::kOwn,
       .reads_variable = false,
       .metavar = "bash|zsh|fish",
       .completion = C::kWords,
       .words = "bash zsh fish",
       .is_choice = true,
       .help = "Print the script that completes this program's options in a shell, and exit."},
      {.name = "man",
       .family = F::kOwn,
       .reads_variable = false,
       .value = V::kSwitch,
       .help = "Print the man page, for man -l or a file in man1, and exit."},
      {.name = "help",
       .letter = 'h',
       .reads_variable = false,
       .value = V::kSwitch,
       .help = "Print this text and exit."},
      {.name = "version",
       .family = F::kOwn,
       .reads_variable = false,
       .value = V::kSwitch,
       .help = "Print the version and exit."},
  };
}

}  // namespace fsdprun
