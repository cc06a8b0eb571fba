#include "launcher/cli/option_table.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

std::vector<OptionSpec> Nodes() {
  return {
      {.name = "standalone",
       .group = G::kNodes,
       .launcher_only = true,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "One node, a random run id, free ports. Overrides the rendezvous options."},
      {.name = "nnodes",
       .group = G::kNodes,
       .launcher_only = true,
       .metavar = "N|MIN:MAX",
       .default_text = "1",
       .help = "Nodes of the job. With MIN:MAX the job starts with MIN nodes once --rdzv-conf's "
               "last_call_timeout has passed, at once with MAX."},
      {.name = "nproc-per-node",
       .group = G::kNodes,
       .metavar = "N|cpu|gpu|auto",
       .default_text = "1",
       .completion = C::kWords,
       .words = "auto cpu gpu",
       .help = "Workers on this node. auto: one per GPU, or one per usable CPU without GPUs."},
      {.name = "node-rank",
       .group = G::kNodes,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "0 (static)",
       .help = "This node's rank. Static rendezvous needs it; node 0 hosts the coordinator. "
               "Ignored with c10d."},
      {.name = "role",
       .group = G::kNodes,
       .metavar = "NAME",
       .default_text = "default",
       .help = "ROLE_NAME of this node's workers."},
  };
}

std::vector<OptionSpec> Rendezvous() {
  return {
      {.name = "rdzv-backend",
       .group = G::kRendezvous,
       .launcher_only = true,
       .metavar = "c10d|static",
       .default_text = "static",
       .completion = C::kWords,
       .words = "c10d static",
       .help = "Who hosts the coordinator. c10d: the launcher that binds the endpoint first; "
               "surviving nodes keep their order, new ones are ordered by name. static: node rank "
               "0."},
      {.name = "rdzv-endpoint",
       .group = G::kRendezvous,
       .metavar = "HOST[:PORT]",
       .default_text = "c10d: localhost:29400; static: master-addr:master-port",
       .completion = C::kHost,
       .help = "Where the coordinator listens."},
      {.name = "rdzv-id",
       .group = G::kRendezvous,
       .metavar = "ID",
       .default_text = "none",
       .help = "Run id; must be the same on all nodes of a job."},
      {.name = "rdzv-conf",
       .group = G::kRendezvous,
       .metavar = "K=V,...",
       .default_text = "join_timeout=600,last_call_timeout=30",
       .help = "Timeouts in seconds. Unknown keys are ignored, as by torchrun."},
      {.name = "master-addr",
       .group = G::kRendezvous,
       .launcher_only = true,
       .metavar = "ADDR",
       .default_text = "127.0.0.1",
       .completion = C::kHost,
       .help = "Address of node rank 0, with static rendezvous."},
      {.name = "master-port",
       .group = G::kRendezvous,
       .launcher_only = true,
       .value = V::kInteger,
       .metavar = "PORT",
       .default_text = "29500",
       .help = "Port of node rank 0, with static rendezvous. If the default port of a one-node job "
               "is in use, a "
               "free one is taken."},
      {.name = "local-addr",
       .group = G::kRendezvous,
       .metavar = "ADDR",
       .default_text = "from the route to the coordinator",
       .completion = C::kHost,
       .help = "Address of this node that the others can reach."},
      {.name = "token-file",
       .family = F::kOwn,
       .group = G::kRendezvous,
       .metavar = "FILE",
       .default_text = "FSDPRUN_TOKEN, else a private file on this machine",
       .completion = C::kFile,
       .help = "File with the job token; overrides the variable FSDPRUN_TOKEN. Jobs over several "
               "machines need one of them. Keep it private (mode 600)."},
  };
}

std::vector<OptionSpec> Failures() {
  return {
      {.name = "max-restarts",
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "0",
       .help = "How many times all workers of the job are restarted after a failure."},
      {.name = "monitor-interval",
       .group = G::kFailures,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "0.1",
       .help = "Accepted for compatibility; has no effect, because workers are not polled."},
      {.name = "shutdown-timeout",
       .family = F::kOwn,
       .group = G::kFailures,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "30",
       .help = "Time between the signal and SIGKILL when workers are stopped by an operator or "
               "because nodes join or leave."},
      {.name = "abort-timeout",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "2",
       .help = "Time between the signal and SIGKILL after a failure; the workers that survived it "
               "cannot go on without the "
               "one that failed. At most the shutdown timeout."},
      {.name = "signals-to-handle",
       .group = G::kFailures,
       .metavar = "NAME,...",
       .default_text = kDefaultSignals,
       .help =
           "Signals that end the job in an orderly way. An unknown name is only warned "
           "about. Any other signal that ends this process kills the workers, as SIGKILL does."},
  };
}

std::vector<OptionSpec> OutputAndProgram() {
  return {
      {.name = "log-dir",
       .group = G::kOutput,
       .metavar = "DIR",
       .default_text = "temporary, removed after success",
       .completion = C::kDirectory,
       .help = "Where DIR/<run id>_<random>/attempt_<n>/<local rank>/{stdout.log,stderr.log,"
               "error.json} are written."},
      {.name = "logs-specs",
       .group = G::kOutput,
       .reads_variable = false,
       .metavar = "NAME",
       .default_text = "default",
       .completion = C::kWords,
       .words = "default",
       .help = "Accepted for compatibility: default is the only one, because others are plugins in "
               "Python."},
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
       .help = "The program is an executable, not a Python script."},
      {.name = "run-path",
       .group = G::kProgram,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "The program is a Python script, whatever --module and --no-python say."},
      {.name = "virtual-local-rank",
       .group = G::kProgram,
       .value = V::kSwitch,
       .default_text = "off",
       .help =
           "Each worker sees one GPU and has LOCAL_RANK 0: CUDA_VISIBLE_DEVICES is its entry of "
           "this process's list, or its local rank where there is no list."},
      {.name = "start-method",
       .group = G::kProgram,
       .metavar = "spawn|fork|forkserver",
       .default_text = "spawn",
       .completion = C::kWords,
       .words = "spawn fork forkserver",
       .help = "Accepted for compatibility; has no effect, because workers are programs and no "
               "functions of Python."},
  };
}

std::vector<OptionSpec> Other() {
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

}  // namespace

const char* ProgramName(CliProgram program) {
  return program == CliProgram::kFsdprun ? "fsdprun" : "fsdp-agent";
}

const std::vector<OptionSpec>& OptionTable() {
  static const std::vector<OptionSpec> table = [] {
    std::vector<OptionSpec> all;
    for (const auto& part : {Nodes(), Rendezvous(), Failures(), OutputAndProgram(), Other()}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }();
  return table;
}

const std::vector<OptionGroupTitle>& OptionGroupTitles() {
  static const std::vector<OptionGroupTitle> titles = {
      {G::kNodes, "Nodes and workers"}, {G::kRendezvous, "Rendezvous"},
      {G::kFailures, "Failures"},       {G::kOutput, "Logs"},
      {G::kProgram, "What to run"},     {G::kOther, "Other"},
  };
  return titles;
}

std::string OptionVariableName(const OptionSpec& option) {
  return absl::StrCat("PET_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(option.name, {{"-", "_"}})));
}

bool Offers(CliProgram program, const OptionSpec& option) {
  return program == CliProgram::kFsdprun || !option.launcher_only;
}

}  // namespace fsdprun
