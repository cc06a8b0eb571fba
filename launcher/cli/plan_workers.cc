#include "launcher/cli/plan_workers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/plan_watch.h"

namespace fsdprun {
namespace {

/// The keeper and the coordinator refuse more.
constexpr int kMaxWorkersPerNode = 4096;
constexpr std::chrono::milliseconds kDefaultMaxBackoff{60'000};

bool Says(const RawOptions& options, const char* name, absl::string_view word) {
  const RawValue* value = options.Find(name);
  return value != nullptr && value->text == word;
}

absl::Status ReadWorkers(const RawOptions& options, const MachineFacts& machine, LaunchPlan* plan) {
  const RawValue* value = options.Find("nproc-per-node");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (value->text == "auto" && machine.gpus == 0 && machine.discrete_intel_gpus > 0) {
    plan->nproc_per_node = machine.discrete_intel_gpus;
  } else if (value->text == "cpu" || (value->text == "auto" && machine.gpus == 0)) {
    plan->nproc_per_node = machine.usable_cpus;
  } else if (value->text == "gpu" || value->text == "auto") {
    plan->nproc_per_node = machine.gpus;
  } else if (value->text == "xpu") {
    plan->nproc_per_node = machine.intel_gpus;
  } else {
    ASSIGN_OR_RETURN(plan->nproc_per_node,
                     ToInt(*value, 1, "a number of 1 or more, cpu, gpu, xpu or auto"));
  }
  // Nodes with a daemon count their own devices.
  if (plan->nproc_per_node == 0 && !plan->HasAgents()) {
    return absl::OutOfRangeError(
        absl::StrCat(value->source, ": '", value->text, "' was requested, but no ",
                     value->text == "xpu" ? "Intel GPU" : "NVIDIA or AMD GPU",
                     " is visible on this machine; give a number or cpu"));
  }
  if (plan->nproc_per_node > kMaxWorkersPerNode) {
    return absl::OutOfRangeError(absl::StrCat(value->source, ": '", value->text, "' means ",
                                              plan->nproc_per_node, " workers, at most ",
                                              kMaxWorkersPerNode, " run on one node"));
  }
  return absl::OkStatus();
}

/// `USR1,SIGTERM` -> `SIGUSR1,SIGTERM`: kill and Slurm name signals without the prefix.
std::string WithSignalPrefixes(absl::string_view names) {
  std::vector<std::string> full;
  for (absl::string_view name : absl::StrSplit(names, ',')) {
    name = absl::StripAsciiWhitespace(name);
    full.push_back(absl::StrCat(absl::StartsWith(name, "SIG") ? "" : "SIG", name));
  }
  return absl::StrJoin(full, ",");
}

// S or S:MAX.
absl::Status ReadBackoff(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("restart-backoff");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const std::vector<std::string> parts = absl::StrSplit(value->text, absl::MaxSplits(':', 1));
  ASSIGN_OR_RETURN(plan->restart_backoff, ToSeconds({value->source, parts.front()}, true));
  plan->max_restart_backoff = std::max(plan->restart_backoff, kDefaultMaxBackoff);
  if (parts.size() > 1) {
    ASSIGN_OR_RETURN(plan->max_restart_backoff, ToSeconds({value->source, parts.back()}, true));
  }
  if (plan->max_restart_backoff < plan->restart_backoff) {
    return InvalidValue(*value, "SECONDS or SECONDS:MAX with MAX >= SECONDS");
  }
  return absl::OkStatus();
}

absl::Status ReadQuarantine(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("quarantine-after")) {
    ASSIGN_OR_RETURN(plan->quarantine_after, ToInt(*value, 0, "a number of failures, 0 for never"));
  }
  if (const RawValue* value = options.Find("quarantine-window")) {
    ASSIGN_OR_RETURN(plan->quarantine_window, ToSeconds(*value, false));
  }
  return absl::OkStatus();
}

absl::Status ReadSignals(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* signals = options.Find("signals-to-handle");
  plan->signals_text = signals == nullptr ? kDefaultSignals : signals->text;
  SignalList list = ParseSignals(plan->signals_text);
  plan->signals = std::move(list.signals);
  plan->unknown_signals = std::move(list.unknown);
  const RawValue* forwarded = options.Find("forward-signals");
  if (forwarded == nullptr || forwarded->text.empty()) {
    return absl::OkStatus();
  }
  SignalList forward = ParseSignals(WithSignalPrefixes(forwarded->text));
  if (!forward.unknown.empty()) {
    return absl::OutOfRangeError(absl::StrCat(forwarded->source, ": '", forward.unknown.front(),
                                              "' is no signal that can be passed on"));
  }
  for (const int signal : forward.signals) {
    if (std::find(plan->signals.begin(), plan->signals.end(), signal) != plan->signals.end()) {
      return absl::OutOfRangeError(
          absl::StrCat(forwarded->source, ": SIG", ::sigabbrev_np(signal),
                       " ends the job, as --signals-to-handle says; it can only be in one of the "
                       "two"));
    }
  }
  plan->forwarded_signals = std::move(forward.signals);
  return absl::OkStatus();
}

absl::Status ReadFailurePolicy(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("max-restarts")) {
    ASSIGN_OR_RETURN(plan->max_restarts, ToInt(*value, 0, "a number of 0 or more"));
  }
  if (const RawValue* value = options.Find("shutdown-timeout")) {
    ASSIGN_OR_RETURN(plan->shutdown_timeout, ToSeconds(*value, true));
  }
  if (const RawValue* value = options.Find("abort-timeout")) {
    ASSIGN_OR_RETURN(plan->abort_timeout, ToSeconds(*value, true));
  }
  if (const RawValue* value = options.Find("monitor-interval")) {
    RETURN_IF_ERROR(ToSeconds(*value, false).status());
  }
  if (const RawValue* value = options.Find("exit-barrier-timeout")) {
    RETURN_IF_ERROR(ToSeconds(*value, true).status());
  }
  if (const RawValue* value = options.Find("requeue-margin")) {
    ASSIGN_OR_RETURN(plan->requeue_margin, ToSeconds(*value, true));
  }
  plan->requeue = Says(options, "requeue", "always")  ? RequeueMode::kAlways
                  : Says(options, "requeue", "never") ? RequeueMode::kNever
                                                      : RequeueMode::kAuto;
  RETURN_IF_ERROR(ReadBackoff(options, plan));
  RETURN_IF_ERROR(ReadQuarantine(options, plan));
  RETURN_IF_ERROR(PlanWatch(options, plan));
  plan->stop_signal_to =
      Says(options, "stop-signal-to", "leader") ? StopSignalTo::kLeader : StopSignalTo::kGroup;
  plan->exit_code_style =
      Says(options, "exit-code", "worker") ? ExitCodeStyle::kWorker : ExitCodeStyle::kTorchrun;
  return ReadSignals(options, plan);
}

absl::Status ReadStreams(const RawOptions& options, LaunchPlan* plan) {
  OutputOptions& output = plan->output;
  for (const auto& [name, sets] :
       {std::pair("redirects", &output.redirects), std::pair("tee", &output.tee)}) {
    if (const RawValue* value = options.Find(name); value != nullptr && !value->text.empty()) {
      ASSIGN_OR_RETURN(*sets, ToStreamSets(*value));
      output.names_files = output.names_files || !(*sets == StreamSets{});
    }
  }
  if (const RawValue* value = options.Find("local-ranks-filter")) {
    ASSIGN_OR_RETURN(output.shown_local_ranks, ToLocalRanks(*value));
  }
  if (const RawValue* value = options.Find("duplicate-stdout-filters")) {
    output.stdout_filters = ToTexts(value->text);
  }
  if (const RawValue* value = options.Find("duplicate-stderr-filters")) {
    output.stderr_filters = ToTexts(value->text);
  }
  return absl::OkStatus();
}

absl::Status ReadOutput(const RawOptions& options, const Environment& environment,
                        LaunchPlan* plan) {
  if (const RawValue* value = options.Find("log-dir")) {
    plan->log_dir = value->text;
  }
  plan->output.names_directory = !plan->log_dir.empty();
  plan->output.has_directory = plan->log_dir != "/dev/null";
  if (const auto it = environment.find("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
      it != environment.end()) {
    plan->output.prefix_template = it->second;
  }
  if (const RawValue* value = options.Find("logs-specs");
      value != nullptr && value->text != "default") {
    return InvalidValue(*value, "default; other logs specs are plugins in Python");
  }
  if (const RawValue* value = options.Find("event-log-handler")) {
    ASSIGN_OR_RETURN(const std::string name,
                     ToWord(*value, {"null", "console", "dynamic_rendezvous"}));
    plan->event_handler = name == "console" ? EventHandler::kConsole : EventHandler::kNull;
  }
  return ReadStreams(options, plan);
}

absl::Status ReadProcesses(const RawOptions& options, const MachineFacts& machine,
                           LaunchPlan* plan) {
  for (const NumaBinding binding : {NumaBinding::kNode, NumaBinding::kSocket,
                                    NumaBinding::kExclusive, NumaBinding::kCoreComplex}) {
    if (Says(options, "numa-binding", NumaBindingName(binding))) {
      plan->numa_binding = binding;
    }
  }
  if (Says(options, "stdin", "rank0")) {
    plan->stdin_source = StdinSource::kRankZero;
  } else if (Says(options, "stdin", "none")) {
    plan->stdin_source = StdinSource::kNone;
  }
  if (const RawValue* value = options.Find("omp-threads")) {
    if (value->text == "auto") {
      plan->divides_cores = true;
      DivideCores(machine, plan);
    } else {
      ASSIGN_OR_RETURN(plan->omp_threads, ToInt(*value, 1, "a number of 1 or more, or auto"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadProgram(const RawOptions& options, LaunchPlan* plan) {
  plan->program = options.program;
  if (plan->daemon.has_value() || !plan->attached_session.empty()) {
    plan->program = {plan->daemon.has_value() ? "daemon" : "job"};
    return absl::OkStatus();
  }
  if (plan->is_coordinator) {
    plan->program = {plan->rdzv_id};  // What its report calls the job.
    plan->program_kind = ProgramKind::kExecutable;
    return absl::OkStatus();
  }
  plan->has_virtual_local_rank = options.IsOn("virtual-local-rank");
  plan->passes_local_rank = Says(options, "compat", "launch") && !options.IsOn("use-env");
  if (plan->passes_local_rank && options.IsOn("no-python")) {
    return absl::OutOfRangeError(
        "--no-python with --compat=launch needs --use-env too: as torch.distributed.launch");
  }
  if (options.IsOn("run-path")) {
    return absl::OkStatus();
  }
  if (options.IsOn("module") && options.IsOn("no-python")) {
    return absl::OutOfRangeError(
        "--module and --no-python exclude each other: a module is run by Python");
  }
  if (options.IsOn("module")) {
    plan->program_kind = ProgramKind::kPythonModule;
  } else if (options.IsOn("no-python")) {
    plan->program_kind = ProgramKind::kExecutable;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanWorkers(const RawOptions& options, const Environment& environment,
                         const MachineFacts& machine, LaunchPlan* plan) {
  plan->nproc_is_given = options.Find("nproc-per-node") != nullptr;
  plan->keeps_slurm_variables = options.IsOn("keep-slurm-env");
  if (const RawValue* words = options.Find("srun-args")) {
    plan->srun_arguments = absl::StrSplit(words->text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  }
  RETURN_IF_ERROR(ReadWorkers(options, machine, plan));
  RETURN_IF_ERROR(ReadFailurePolicy(options, plan));
  RETURN_IF_ERROR(ReadOutput(options, environment, plan));
  RETURN_IF_ERROR(ReadProcesses(options, machine, plan));
  return ReadProgram(options, plan);
}

void DivideCores(const MachineFacts& machine, LaunchPlan* plan) {
  if (plan->divides_cores) {
    plan->omp_threads = std::max(1, machine.usable_cpus / std::max(1, plan->nproc_per_node));
  }
}

}  // namespace fsdprun
