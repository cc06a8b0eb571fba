#include "launcher/cli/option_groups.h"

// The options of fsdpctl doctor.

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

std::vector<OptionSpec> Checks() {
  return {
      {.name = "all",
       .family = F::kOwn,
       .group = G::kChecks,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Show also what is as it should be, and notes."},
      {.name = "json",
       .family = F::kOwn,
       .group = G::kChecks,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Print one JSON object, see docs/DOCTOR.md."},
      {.name = "port",
       .family = F::kOwn,
       .group = G::kChecks,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "PORT",
       .default_text = "that of --rdzv-endpoint, else 29400",
       .help = "Port of the rendezvous: whether it is free here, and where --listen listens."},
      {.name = "log-dir",
       .family = F::kOwn,
       .group = G::kChecks,
       .reads_variable = false,
       .metavar = "DIR",
       .default_text = "only the folder for temporary files is looked at",
       .completion = C::kDirectory,
       .help = "Where the job's logs are to be: whether it can be written and what is free there."},
      {.name = "python",
       .family = F::kOwn,
       .group = G::kChecks,
       .reads_variable = false,
       .other_variable = "PYTHON_EXEC",
       .metavar = "FILE",
       .default_text = "python3 on PATH",
       .completion = C::kFile,
       .help = "Interpreter of the workers: which PyTorch it has."},
  };
}

std::vector<OptionSpec> PairTest() {
  std::vector<OptionSpec> options = {
      {.name = "rdzv-endpoint",
       .family = F::kOwn,
       .group = G::kPairTest,
       .reads_variable = false,
       .metavar = "HOST[:PORT]",
       .default_text = "in a step of Slurm with several nodes its first node, else no test",
       .completion = C::kHost,
       .help = "Test the way between the nodes of a job: run the same line on all of them. The one "
               "that has the address listens there and prints what was found, the others come."},
      {.name = "nnodes",
       .family = F::kOwn,
       .group = G::kPairTest,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "those of the step of Slurm, else 2",
       .help = "How many nodes there are. 1: only this one, also in a step of Slurm."},
      {.name = "listen",
       .family = F::kOwn,
       .group = G::kPairTest,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Wait for other nodes to come with --with, until --nnodes have come or Ctrl-C."},
      {.name = "with",
       .family = F::kOwn,
       .group = G::kPairTest,
       .reads_variable = false,
       .metavar = "HOST[:PORT]",
       .completion = C::kHost,
       .help = "Test the way to the node that waits there with --listen."},
      {.name = "timeout",
       .family = F::kOwn,
       .group = G::kPairTest,
       .reads_variable = false,
       .value = V::kNumber,
       .metavar = "SECONDS",
       .default_text = "60; with --listen and no --nnodes none",
       .help = "How long nodes wait for the next one to come."},
  };
  for (OptionSpec option : SecurityOptions()) {
    const std::string name = option.name;
    if (name == "token-file" || name == "no-token") {
      option.group = G::kPairTest;
      option.reads_variable = false;
      options.push_back(option);
    }
  }
  return options;
}

}  // namespace

std::vector<OptionSpec> DoctorOptionSpecs() {
  std::vector<OptionSpec> options = Checks();
  for (const OptionSpec& option : PairTest()) {
    options.push_back(option);
  }
  return options;
}

}  // namespace fsdprun
