#include "fsdpctl/slurm/submission.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdpctl/slurm/directives.h"
#include "fsdpctl/slurm/job_environment.h"
#include "fsdpctl/slurm/shell_quote.h"
#include "fsdpctl/slurm/slurm_values.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/option_lookup.h"

namespace fsdprun {
namespace {

/// The launcher's options, as its own command line has them.
std::vector<std::string> LauncherWords(const RawOptions& options) {
  std::vector<std::string> words;
  for (const OptionSpec& option : OptionTable()) {
    const RawValue* value = options.Find(option.name);
    if (value != nullptr && option.group != OptionGroup::kOther) {
      words.push_back(absl::StrCat("--", option.name, option.takes_value() ? "=" : "",
                                   option.takes_value() ? value->text : ""));
    }
  }
  const bool says_workers = options.Find("nproc-per-node") != nullptr;
  if (options.Find("gpus-per-node") != nullptr && !says_workers) {
    words.emplace_back("--nproc-per-node=gpu");
  }
  return words;
}

absl::StatusOr<NodeRange> ChooseNodes(const RawOptions& options, const LaunchPlan& plan) {
  const NodeRange needed{plan.min_nodes, plan.max_nodes};
  const RawValue* value = options.Find("nodes");
  if (value == nullptr) {
    return needed;
  }
  ASSIGN_OR_RETURN(const NodeRange nodes, ToNodeRange(*value));
  if (plan.nnodes_is_given && nodes.min < needed.min) {
    return absl::OutOfRangeError(absl::StrCat(value->source, ": ", value->text, " may be ",
                                              nodes.min, ", but --nnodes needs ", needed.min,
                                              "; leave one of them out"));
  }
  return nodes;
}

absl::Status CheckRendezvous(const RawOptions& options, const LaunchPlan& plan,
                             const NodeRange& nodes) {
  if (!plan.rendezvous_is_given || (nodes.max == 1 && plan.max_nodes == 1)) {
    return absl::OkStatus();
  }
  std::string given = "a PET_ variable of this shell";
  for (const char* name :
       {"standalone", "rdzv-endpoint", "rdzv-backend", "master-addr", "node-rank"}) {
    if (const RawValue* value = options.Find(name); value != nullptr) {
      given = absl::StrCat(value->source, ": '", value->text, "'");
    }
  }
  return absl::OutOfRangeError(
      absl::StrCat(given,
                   " says where the nodes meet, but the batch file starts one fsdprun, "
                   "which knows the nodes of its job; leave it out"));
}

std::string NameOfProgram(const std::string& program) {
  const std::string name = program.substr(program.find_last_of('/') + 1);
  return name.empty() || !IsDirectiveValue(name) ? "fsdprun" : name;
}

}  // namespace

MachineFacts AnyMachine() {
  return {.usable_cpus = 1, .gpus = 1, .intel_gpus = 1, .discrete_intel_gpus = 1};
}

absl::StatusOr<Submission> PlanSubmission(const std::vector<std::string>& args,
                                          const Environment& environment,
                                          const std::string& fsdprun) {
  constexpr CliProgram kProgram = CliProgram::kSlurmSubmit;
  ASSIGN_OR_RETURN(RawOptions given, OptionsOfArguments(kProgram, args));
  Submission submission{.request = RequestOf(given), .is_parsable = given.IsOn("parsable")};
  if (IsForReader(submission.request)) {
    return submission;
  }
  if (given.program.empty() || given.program.front().empty()) {
    return absl::InvalidArgumentError(
        "no program to run was given; usage: fsdpctl slurm submit [options] PROGRAM [arguments]; "
        "see fsdpctl slurm submit --help");
  }
  const RawOptions options = WithVariables(kProgram, std::move(given), environment);
  std::vector<std::string> command = LauncherWords(options);
  if (LooksLikeOption(options.program.front()) || options.program.front() == "--") {
    command.emplace_back("--");
  }
  command.insert(command.end(), options.program.begin(), options.program.end());
  // The launcher's own errors, now and not when the job has waited for its turn.
  ASSIGN_OR_RETURN(
      const LaunchPlan plan,
      ParseCommandLine(CliProgram::kFsdprun, command,
                       ExportedEnvironment(environment, TextOr(options, "export", "ALL")),
                       AnyMachine()));
  RETURN_IF_ERROR(CheckSbatchValues(kProgram, options));
  ASSIGN_OR_RETURN(const NodeRange nodes, ChooseNodes(options, plan));
  RETURN_IF_ERROR(CheckRendezvous(options, plan, nodes));
  ASSIGN_OR_RETURN(
      submission.file.directives,
      MakeDirectives(kProgram, options, NameOfProgram(options.program.front()), nodes));
  ASSIGN_OR_RETURN(const std::vector<Directive> queue, QueueDirectives(options, plan));
  submission.file.directives.insert(submission.file.directives.end(), queue.begin(), queue.end());
  submission.file.setup = TextOr(options, "setup", "");
  submission.file.command = std::move(command);
  submission.file.command.insert(submission.file.command.begin(), fsdprun);
  return submission;
}

}  // namespace fsdprun
