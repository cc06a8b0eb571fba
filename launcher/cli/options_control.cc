#include "launcher/cli/option_groups.h"

// The options of fsdpctl's commands about running jobs.

namespace fsdprun {
namespace {

using F = OptionFamily;
using G = OptionGroup;
using V = ValueKind;
using C = Completion;

std::vector<OptionSpec> WhichJob() {
  std::vector<OptionSpec> options = {
      {.name = "job",
       .family = F::kOwn,
       .group = G::kWhichJob,
       .reads_variable = false,
       .metavar = "ID",
       .default_text = "the only one of this user on this machine",
       .help = "Run id of the job, or the pid of the launcher that hosts its coordinator, as "
               "fsdpctl ps shows them."},
      {.name = "rdzv-endpoint",
       .family = F::kOwn,
       .group = G::kWhichJob,
       .reads_variable = false,
       .metavar = "HOST:PORT",
       .default_text = "jobs of this machine are asked",
       .completion = C::kHost,
       .help = "Where the nodes of the job meet: its coordinator is asked there, from any machine "
               "that reaches it and has the job's token. Needs --job."},
  };
  for (OptionSpec& option : SecurityOptions()) {
    option.group = G::kWhichJob;
    option.reads_variable = false;
    options.push_back(option);
  }
  return options;
}

OptionSpec Follow(const char* help) {
  return {.name = "follow",
          .letter = 'f',
          .family = F::kOwn,
          .group = G::kOutput,
          .reads_variable = false,
          .value = V::kSwitch,
          .default_text = "off",
          .help = help};
}

OptionSpec Ranks() {
  return {.name = "rank",
          .family = F::kOwn,
          .group = G::kWhichJob,
          .reads_variable = false,
          .metavar = "RANKS",
          .default_text = "all",
          .help = "Only these workers, such as 0 or 0,4-7."};
}

OptionSpec Nodes() {
  return {.name = "node",
          .family = F::kOwn,
          .group = G::kWhichJob,
          .reads_variable = false,
          .metavar = "NODES",
          .default_text = "all",
          .help =
              "Only the workers of these nodes: names or addresses as fsdpctl status shows "
              "them, or group ranks as @N, separated by commas."};
}

OptionSpec Json(const char* help) {
  return {.name = "json",
          .family = F::kOwn,
          .group = G::kOutput,
          .reads_variable = false,
          .value = V::kSwitch,
          .default_text = "off",
          .help = help};
}

std::vector<OptionSpec> StatusOptions() {
  return {Follow("Go on, and show the state anew when it changes, until the job is over."),
          Json("Print JSON objects, one in a line, see docs/CONTROL.md."),
          {.name = "workers",
           .family = F::kOwn,
           .group = G::kOutput,
           .reads_variable = false,
           .value = V::kSwitch,
           .default_text = "off",
           .help = "Also show each worker: its process, what it does, its step and its memory; "
                   "with --follow about once a second."}};
}

std::vector<OptionSpec> TopOptions() {
  return {{.name = "once",
           .family = F::kOwn,
           .group = G::kOutput,
           .reads_variable = false,
           .value = V::kSwitch,
           .default_text = "off",
           .help = "Print what the screen would show, with all workers, and end. Needs no "
                   "terminal."},
          Json("Print one JSON object with what the screen would show, and end: that of "
               "fsdpctl status --workers, see docs/CONTROL.md.")};
}

std::vector<OptionSpec> OwnOptions(CliProgram program) {
  switch (program) {
    case CliProgram::kJobList:
      return {Json("Print one JSON object, see docs/CONTROL.md.")};
    case CliProgram::kJobStatus:
      return StatusOptions();
    case CliProgram::kJobTop:
      return TopOptions();
    case CliProgram::kJobEvents:
      return {Follow("Go on, and show new events as they come, until the job is over."),
              Json("Print the lines of events.jsonl, see docs/EVENTS.md.")};
    case CliProgram::kJobLogs:
      return {Ranks(),
              Nodes(),
              {.name = "tail",
               .family = F::kOwn,
               .group = G::kOutput,
               .reads_variable = false,
               .value = V::kInteger,
               .metavar = "LINES",
               .default_text = "100",
               .help = "How many of the latest lines of each stream of each worker are shown; "
                       "at most what is in the last MiB."},
              Follow("Go on with what is written from now on, until the job is over."),
              Json("Print JSON objects, one for each line, see docs/CONTROL.md.")};
    case CliProgram::kJobStacks:
      return {Ranks(), Nodes(),
              Json("Print JSON objects, one for each worker, see "
                   "docs/CONTROL.md.")};
    case CliProgram::kJobSave:
      return {{.name = "timeout",
               .family = F::kOwn,
               .group = G::kStopping,
               .reads_variable = false,
               .value = V::kNumber,
               .metavar = "SECONDS",
               .default_text = "600",
               .help = "How long the workers have until one tells of the checkpoint."},
              Json("Print one JSON object, see docs/CONTROL.md.")};
    case CliProgram::kJobDrain:
      return {{.name = "below-min",
               .family = F::kOwn,
               .group = G::kNodes,
               .reads_variable = false,
               .value = V::kSwitch,
               .default_text = "off",
               .help = "Drain the node even if too few others are there: the workers stop, and "
                       "the job waits for another node, as long as its join timeout."}};
    case CliProgram::kJobStop:
      return {{.name = "now",
               .family = F::kOwn,
               .group = G::kStopping,
               .reads_variable = false,
               .value = V::kSwitch,
               .default_text = "off",
               .help = "Do not wait for workers that are still ending."}};
    default:
      return {};
  }
}

}  // namespace

std::vector<OptionSpec> JobCommandOptions(CliProgram program) {
  std::vector<OptionSpec> options;
  if (program != CliProgram::kJobList) {
    options = WhichJob();
  }
  for (const OptionSpec& option : OwnOptions(program)) {
    options.push_back(option);
  }
  return options;
}

}  // namespace fsdprun
