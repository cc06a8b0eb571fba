#include "launcher/cli/command_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/plan_agents.h"
#include "launcher/cli/plan_rendezvous.h"
#include "launcher/cli/plan_workers.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {
namespace {

/// Of choices, on the command line only what is offered, as usage; argparse does not look at the
/// choices of defaults, which is what variables are to it, so those of torchrun's own options may
/// say anything.
absl::Status CheckChoices(const RawOptions& options) {
  for (const OptionSpec& option : OptionTable()) {
    const RawValue* value = options.Find(option.name);
    if (!option.is_choice || value == nullptr) {
      continue;
    }
    const bool is_argument = absl::StartsWith(value->source, "--");
    absl::Status status = ToWord(*value, absl::StrSplit(option.words, ' ')).status();
    if (!status.ok() && is_argument) {
      return absl::InvalidArgumentError(status.message());
    }
    if (!status.ok() && option.family == OptionFamily::kOwn) {
      return status;
    }
  }
  return absl::OkStatus();
}

// What is asked for instead of a job; kRun if nothing is.
absl::StatusOr<Request> ReadRequest(const RawOptions& options, LaunchPlan* plan) {
  if (options.IsOn("help")) {
    return Request::kHelp;
  }
  if (options.IsOn("version")) {
    return Request::kVersion;
  }
  if (options.IsOn("man")) {
    return Request::kManPage;
  }
  if (const RawValue* shell = options.Find("completion")) {
    RETURN_IF_ERROR(CheckChoices(options));
    for (const Shell known : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
      if (shell->text == ShellName(known)) {
        plan->completion = known;
      }
    }
    return Request::kCompletion;
  }
  return Request::kRun;
}

// `given` where it says something, `defaults` elsewhere.
RawOptions Merge(RawOptions given, RawOptions defaults) {
  for (auto& [name, value] : given.values) {
    defaults.values[name] = std::move(value);
  }
  defaults.program = std::move(given.program);
  return defaults;
}

// As torchrun does: --standalone ignores the other settings of the rendezvous.
void DropWhatStandaloneIgnores(RawOptions* options) {
  if (options->IsOn("standalone")) {
    for (const char* name :
         {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "master-addr", "master-port"}) {
      options->values.erase(name);
    }
  }
}

// What argparse checks itself, which torchrun's users see before anything about values.
absl::Status CheckUsage(CliProgram program, const RawOptions& options) {
  for (const auto& [name, why] :
       {std::pair("coordinator", "the nodes' launchers are told what to run"),
        std::pair("daemon", "launchers (fsdprun --agents) say what to run"),
        std::pair("attach", "the job has its program")}) {
    const bool is_given = options.Find(name) != nullptr && options.Find(name)->text != "0";
    if (is_given && !options.program.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--", name, " runs no program, but '", options.program.front(), "' was given; ", why));
    }
    if (is_given) {
      RETURN_IF_ERROR(CheckChoices(options));
      return CheckNumbers(options);
    }
  }
  if (options.program.empty() || options.program.front().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no program to run was given; usage: ", ProgramName(program),
                     " [options] PROGRAM [arguments]; see ", ProgramName(program), " --help"));
  }
  RETURN_IF_ERROR(CheckChoices(options));
  return CheckNumbers(options);
}

// Rules about combinations of options, each of which is valid by itself.
absl::Status Reconcile(CliProgram program, const RawOptions& options, LaunchPlan* plan) {
  if (options.IsOn("standalone")) {
    if (plan->max_nodes > 1) {
      return absl::OutOfRangeError(absl::StrCat("--standalone runs one node, but --nnodes is ",
                                                options.Find("nnodes")->text));
    }
    plan->backend = RendezvousBackend::kC10d;
    plan->rdzv_id_is_random = true;
  }
  if (plan->daemon.has_value()) {
    return absl::OkStatus();
  }
  if (program == CliProgram::kFsdpAgent) {
    const RawValue* endpoint = options.Find("rdzv-endpoint");
    if (endpoint == nullptr || endpoint->text.empty() || plan->endpoint.port == 0) {
      return absl::OutOfRangeError(
          "--rdzv-endpoint HOST:PORT is needed: where the coordinator listens");
    }
    if (plan->rdzv_id_is_random) {
      return absl::OutOfRangeError(
          "--rdzv-id: '' is not the run id that the coordinator was given");
    }
    return absl::OkStatus();
  }
  const bool is_static = plan->backend == RendezvousBackend::kStatic;
  if (is_static && plan->node_rank >= plan->max_nodes) {
    return absl::OutOfRangeError(
        absl::StrCat("--node-rank: ", plan->node_rank, " is not below --nnodes ", plan->max_nodes));
  }
  if (plan->IsSingleNode() || plan->HasAgents()) {
    return absl::OkStatus();
  }
  if (plan->rdzv_id_is_random) {
    return absl::OutOfRangeError(
        "--rdzv-id: '' would become a different random id on each node; give all nodes the same "
        "id");
  }
  if (plan->endpoint.port == 0 && !plan->uses_file) {
    return absl::OutOfRangeError(
        "port 0 means any free port, which the other nodes cannot know; give a port");
  }
  if (is_static) {
    plan->node_rank = std::max(plan->node_rank, 0);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LaunchPlan> ParseCommandLine(CliProgram program,
                                            const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const MachineFacts& machine) {
  ASSIGN_OR_RETURN(RawOptions given, OptionsOfArguments(program, args));
  LaunchPlan plan;
  ASSIGN_OR_RETURN(plan.request, ReadRequest(given, &plan));
  if (plan.request != Request::kRun) {
    return plan;
  }
  RawOptions merged = Merge(std::move(given), OptionsOfEnvironment(program, environment));
  RETURN_IF_ERROR(CheckUsage(program, merged));
  DropWhatStandaloneIgnores(&merged);
  plan.is_agent = program == CliProgram::kFsdpAgent;
  RETURN_IF_ERROR(PlanRendezvous(merged, &plan));
  RETURN_IF_ERROR(PlanAgents(merged, &plan));
  RETURN_IF_ERROR(PlanWorkers(merged, environment, machine, &plan));
  RETURN_IF_ERROR(Reconcile(program, merged, &plan));
  if (merged.IsOn("dry-run")) {
    plan.request = Request::kDryRun;
  }
  return plan;
}

}  // namespace fsdprun
