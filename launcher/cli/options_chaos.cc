#include "absl/strings/string_view.h"
#include "launcher/cli/option_groups.h"

// The options of `fsdprun chaos`.

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

std::vector<OptionSpec> WhichChaosJob() {
  return {
      {.name = "job",
       .family = F::kOwn,
       .group = G::kWhichJob,
       .reads_variable = false,
       .metavar = "ID",
       .default_text = "COMMAND is started; without one, the only job of this user here",
       .help =
           "Attach to a job whose coordinator runs on this machine: its run id, or the pid that "
           "fsdpctl ps shows."},
      {.name = "nodes",
       .family = F::kOwn,
       .group = G::kWhichJob,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "as many as its --nnodes takes",
       .help = "How many launchers of a COMMAND for several nodes are started."},
  };
}

std::vector<OptionSpec> HowManyFaults() {
  return {
      {.name = "faults",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "N",
       .default_text = "20; with --duration, no bound",
       .help = "How many random faults there are."},
      {.name = "duration",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "TIME",
       .default_text = "no bound",
       .help = "No fault begins later than that after all workers ran for the first time."},
      {.name = "every",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "TIME",
       .default_text = "2s",
       .help = "The pause before each random fault, on the average: it is between half of that and "
               "one and a half, and begins when all workers run again after the fault before."},
  };
}

std::vector<OptionSpec> WhichFaults() {
  return {
      {.name = "kinds",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "KIND,...",
       .default_text = "all that can be done to the job",
       .completion = C::kWords,
       .words = "kill stop partition delay fill corrupt",
       .help = "Which random faults: kill (SIGKILL); stop (SIGSTOP, and SIGCONT later); partition "
               "(nothing passes between an agent and the coordinator) and delay (it comes late), "
               "of agents that are started here; fill, with --fill; corrupt, with --corrupt."},
      {.name = "targets",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "TARGET,...",
       .default_text = "all, but of a job with one launcher, and of one that runs already: "
                       "worker,keeper",
       .completion = C::kWords,
       .words = "worker keeper agent coordinator",
       .help =
           "Whom random faults meet. An agent is the launcher of a node. Where this program has "
           "not started the job, something else must start again what is killed."},
      {.name = "length",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "MIN:MAX",
       .default_text = "200ms:5s",
       .help = "How long random faults last: stop, partition, delay and fill."},
      {.name = "latency",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "MIN:MAX",
       .default_text = "50ms:500ms",
       .help = "How late a delay makes what agents and coordinator say, in each direction."},
      {.name = "seed",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "N",
       .default_text = "another one each time, which is printed; of a schedule: 0",
       .help = "The same seed and options are the same plan. In a schedule it chooses whom faults "
               "without a number meet."},
      {.name = "schedule",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "FILE",
       .default_text = "random faults",
       .completion = C::kFile,
       .help = "The faults and their times, one in a line: TIME FAULT [TARGET[:NUMBER]] [LENGTH] "
               "[LATENCY], such as `20s stop worker:1 4s`; or as JSON. See docs/CHAOS.md."},
  };
}

std::vector<OptionSpec> HowFaults() {
  return {
      {.name = "overlap",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Random faults come although the job has not answered the one before."},
      {.name = "fill",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "DIR",
       .default_text = "nothing is filled",
       .completion = C::kDirectory,
       .help =
           "A fault of kind fill takes the room of this folder's file system, by a file without "
           "a name, which is gone with this program whatever ends it."},
      {.name = "fill-leave",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .value = V::kInteger,
       .metavar = "BYTES",
       .default_text = "1048576",
       .help = "How much room is left there."},
      {.name = "corrupt",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "DIR",
       .default_text = "nothing is damaged",
       .completion = C::kDirectory,
       .help = "A fault of kind corrupt flips bytes of the newest checkpoint in this folder, if "
               "there is another one, and kills a worker, so that the job has to fall back."},
  };
}

std::vector<OptionSpec> WhichVerdict() {
  return {
      {.name = "patience",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "TIME",
       .default_text = "120s",
       .help = "How long the job may take until all workers run, at first, and until they get on "
               "after a fault is over: a fault that takes it longer was not survived."},
      {.name = "settle",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "TIME",
       .default_text = "2s",
       .help = "Workers that have reported steps have answered a fault with the next step. Of "
               "others all have to run for so long, in the same world."},
      {.name = "until-end",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off: of a job that was not started here the end is not waited for",
       .help = "The verdict waits for the job's end."},
      {.name = "verify",
       .family = F::kOwn,
       .group = G::kFaults,
       .reads_variable = false,
       .metavar = "COMMAND",
       .default_text = "nothing is run",
       .help = "Run by a shell after the job has ended with 0. The verdict is good only if it ends "
               "with 0, too."},
      {.name = "json",
       .family = F::kOwn,
       .group = G::kOutput,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Print the report as one JSON object, see docs/CHAOS.md, and nothing else on "
               "standard output: what the job writes there goes to standard error."},
      {.name = "dry-run",
       .family = F::kOwn,
       .reads_variable = false,
       .value = V::kSwitch,
       .default_text = "off",
       .help = "Print the plan and what would be started, and exit."},
  };
}

}  // namespace

std::vector<OptionSpec> ChaosOptionSpecs() {
  std::vector<OptionSpec> options;
  for (const auto& part :
       {WhichChaosJob(), HowManyFaults(), WhichFaults(), HowFaults(), WhichVerdict()}) {
    options.insert(options.end(), part.begin(), part.end());
  }
  for (OptionSpec option : OtherOptions()) {
    if (absl::string_view(option.name) != "dry-run") {
      option.reads_variable = false;
      options.push_back(option);
    }
  }
  return options;
}

}  // namespace fsdprun
