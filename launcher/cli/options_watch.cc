#include "launcher/cli/option_groups.h"

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

}  // namespace

std::vector<OptionSpec> WatchOptions() {
  return {
      {.name = "on-hang",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .metavar = "report|restart|abort",
       .default_text = "report",
       .completion = C::kWords,
       .words = "report restart abort",
       .is_choice = true,
       .help = "What is done when the workers do not get on: it is told, with who it is and the "
               "stacks; or all workers are stopped besides if it lasts (3 times as long as a hang "
               "takes "
               "to be told, 60 s or more), as after a failure, and restarted if --max-restarts "
               "allows; or that ends the job."},
      {.name = "hang-timeout",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .metavar = "SECONDS|auto[:SECONDS]|off",
       .default_text = "auto:600",
       .help =
           "How long workers may show no sign of life before that is a hang. auto: learnt from "
           "the run, 8 s or more in a step, longer while they save, load, evaluate or wait for "
           "data, and SECONDS in the first steps. A number: whatever they do, and --on-hang acts "
           "at that time. off: never."},
      {.name = "straggler-ratio",
       .family = F::kOwn,
       .group = G::kFailures,
       .launcher_only = true,
       .value = V::kNumber,
       .metavar = "R",
       .default_text = "0.1",
       .help =
           "A rank whose own time for a step is longer than the others' by this share, for most "
           "of a minute, is named. 0: none."},
  };
}

}  // namespace fsdprun
