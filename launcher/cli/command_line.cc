#include "launcher/cli/command_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {
namespace {

constexpr uint16_t kDefaultC10dPort = 29400;
constexpr int kMaxNodes = 65536;
/// The keeper and the coordinator refuse more.
constexpr int kMaxWorkersPerNode = 4096;
/// A file name contains the id with a prefix and a suffix.
constexpr size_t kMaxRunIdBytes = 200;

absl::Status ReadNodes(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("nnodes");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const std::vector<std::string> parts = absl::StrSplit(value->text, ':');
  int low = 0;
  int high = 0;
  const bool parsed = parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &low) &&
                      absl::SimpleAtoi(parts.back(), &high);
  if (!parsed || low < 1 || high < low || high > kMaxNodes) {
    return InvalidValue(*value, absl::StrCat("N or MIN:MAX with 1 <= MIN <= MAX <= ", kMaxNodes));
  }
  plan->min_nodes = low;
  plan->max_nodes = high;
  return absl::OkStatus();
}

absl::Status ReadWorkers(const RawOptions& options, const MachineFacts& machine, LaunchPlan* plan) {
  const RawValue* value = options.Find("nproc-per-node");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (value->text == "cpu" || (value->text == "auto" && machine.gpus == 0)) {
    plan->nproc_per_node = machine.usable_cpus;
  } else if (value->text == "gpu" || value->text == "auto") {
    if (machine.gpus == 0) {
      return absl::OutOfRangeError(absl::StrCat(
          value->source,
          ": 'gpu' was requested, but no NVIDIA GPU is visible on this machine; give a number or "
          "cpu"));
    }
    plan->nproc_per_node = machine.gpus;
  } else if (value->text == "xpu" || value->text == "mps") {
    return absl::OutOfRangeError(absl::StrCat("torchrun's --nproc-per-node ", value->text,
                                              " is not supported yet; give a number"));
  } else {
    ASSIGN_OR_RETURN(plan->nproc_per_node,
                     ToInt(*value, 1, "a number of 1 or more, cpu, gpu or auto"));
  }
  if (plan->nproc_per_node > kMaxWorkersPerNode) {
    return absl::OutOfRangeError(absl::StrCat(value->source, ": '", value->text, "' means ",
                                              plan->nproc_per_node, " workers, at most ",
                                              kMaxWorkersPerNode, " run on one node"));
  }
  return absl::OkStatus();
}

// k=v,k=v with blanks trimmed; the last of equal keys wins. Unknown keys are ignored, as by
// torchrun.
absl::Status ReadRendezvousConf(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("rdzv-conf");
  if (value == nullptr || value->text.empty()) {
    return absl::OkStatus();
  }
  for (absl::string_view item : absl::StrSplit(value->text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    const absl::string_view text = absl::StripAsciiWhitespace(pair.second);
    if (key.empty() || text.empty()) {
      return InvalidValue(*value, "a list key=value,key=value");
    }
    const RawValue timeout{absl::StrCat(value->source, " ", key), std::string(text)};
    if (key == "join_timeout") {
      ASSIGN_OR_RETURN(plan->join_timeout, ToSeconds(timeout, false));
    } else if (key == "last_call_timeout") {
      ASSIGN_OR_RETURN(plan->last_call_timeout, ToSeconds(timeout, true));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadBackend(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("rdzv-backend");
  if (value == nullptr || value->text == "static" || value->text.empty()) {
    return absl::OkStatus();
  }
  if (value->text == "etcd" || value->text == "etcd-v2" || value->text == "zeus-adapter") {
    return absl::OutOfRangeError(absl::StrCat("torchrun's --rdzv-backend ", value->text,
                                              " is not supported yet; give c10d or static"));
  }
  if (value->text != "c10d") {
    return InvalidValue(*value, "c10d or static");
  }
  plan->backend = RendezvousBackend::kC10d;
  return absl::OkStatus();
}

absl::Status ReadMaster(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("master-addr");
      value != nullptr && !value->text.empty()) {
    plan->master_addr = value->text;
    if (absl::StartsWith(plan->master_addr, "[") && absl::EndsWith(plan->master_addr, "]")) {
      plan->master_addr = plan->master_addr.substr(1, plan->master_addr.size() - 2);
    }
    if (!IsHost(plan->master_addr)) {
      return absl::OutOfRangeError(
          absl::StrCat(value->source, ": '", value->text, "' is not a host name or address"));
    }
  }
  if (const RawValue* value = options.Find("master-port")) {
    ASSIGN_OR_RETURN(plan->master_port, ToPort(*value));
    plan->master_port_is_explicit = true;
  }
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* value = options.Find("rdzv-endpoint");
  const bool is_given = value != nullptr && !value->text.empty();
  if (is_given) {
    // fsdp-agent has no --rdzv-backend; the coordinators it connects to use c10d's default
    // port.
    const bool is_static = plan->backend == RendezvousBackend::kStatic && !plan->is_agent;
    absl::StatusOr<HostPort> endpoint =
        ParseHostPort(value->text, is_static ? plan->master_port : kDefaultC10dPort);
    if (!endpoint.ok()) {
      return InvalidValue(*value, "HOST, HOST:PORT or [IPV6]:PORT");
    }
    plan->endpoint = *std::move(endpoint);
    if (is_static) {
      plan->master_addr = plan->endpoint.host;
      plan->master_port = plan->endpoint.port;
      plan->master_port_is_explicit = true;
    }
    return absl::OkStatus();
  }
  if (plan->backend == RendezvousBackend::kC10d) {
    plan->endpoint = {"localhost", kDefaultC10dPort};
  } else {
    plan->endpoint = {plan->master_addr, plan->master_port};
  }
  return absl::OkStatus();
}

absl::Status ReadIdentity(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("rdzv-id")) {
    plan->rdzv_id = value->text;
    plan->rdzv_id_is_random = value->text.empty();
    const bool is_printable =
        std::none_of(value->text.begin(), value->text.end(), absl::ascii_iscntrl);
    if (value->text.size() > kMaxRunIdBytes || !is_printable ||
        value->text.find('/') != std::string::npos) {
      return InvalidValue(*value, absl::StrCat("a run id of at most ", kMaxRunIdBytes,
                                               " printable characters without '/'"));
    }
  }
  if (const RawValue* value = options.Find("node-rank")) {
    ASSIGN_OR_RETURN(plan->node_rank, ToInt(*value, 0, "a rank of 0 or more"));
  }
  if (const RawValue* value = options.Find("role"); value != nullptr && !value->text.empty()) {
    plan->role = value->text;
  }
  if (const RawValue* value = options.Find("local-addr")) {
    plan->local_addr = value->text;
  }
  if (const RawValue* value = options.Find("token-file")) {
    plan->token_file = value->text;
  }
  if (const RawValue* value = options.Find("log-dir")) {
    plan->log_dir = value->text;
  }
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
  const RawValue* signals = options.Find("signals-to-handle");
  plan->signals_text = signals == nullptr ? kDefaultSignals : signals->text;
  SignalList list = ParseSignals(plan->signals_text);
  plan->signals = std::move(list.signals);
  plan->unknown_signals = std::move(list.unknown);
  return absl::OkStatus();
}

absl::Status ReadProgram(const RawOptions& options, LaunchPlan* plan) {
  plan->program = options.program;
  plan->has_virtual_local_rank = options.IsOn("virtual-local-rank");
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

absl::Status CheckLogsSpecs(const RawOptions& options) {
  if (const RawValue* value = options.Find("logs-specs");
      value != nullptr && value->text != "default") {
    return InvalidValue(*value, "default; other logs specs are plugins in Python");
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
    for (const Shell known : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
      if (shell->text == ShellName(known)) {
        plan->completion = known;
        return Request::kCompletion;
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(shell->source, ": '", shell->text, "' is not bash, zsh or fish"));
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
  if (options.program.empty() || options.program.front().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no program to run was given; usage: ", ProgramName(program),
                     " [options] PROGRAM [arguments]; see ", ProgramName(program), " --help"));
  }
  if (const RawValue* method = options.Find("start-method");
      method != nullptr && absl::StartsWith(method->source, "--") && method->text != "spawn" &&
      method->text != "fork" && method->text != "forkserver") {
    return absl::InvalidArgumentError(
        absl::StrCat(method->source, ": '", method->text, "' is not spawn, fork or forkserver"));
  }
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
  if (plan->backend == RendezvousBackend::kC10d) {
    plan->node_rank = -1;  // as torchrun
  } else if (plan->node_rank >= plan->max_nodes) {
    return absl::OutOfRangeError(
        absl::StrCat("--node-rank: ", plan->node_rank, " is not below --nnodes ", plan->max_nodes));
  }
  if (plan->IsSingleNode()) {
    return absl::OkStatus();
  }
  if (plan->rdzv_id_is_random) {
    return absl::OutOfRangeError(
        "--rdzv-id: '' would become a different random id on each node; give all nodes the same "
        "id");
  }
  if (plan->endpoint.port == 0) {
    return absl::OutOfRangeError(
        "port 0 means any free port, which the other nodes cannot know; give a port");
  }
  if (plan->backend == RendezvousBackend::kStatic) {
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
  RETURN_IF_ERROR(ReadNodes(merged, &plan));
  RETURN_IF_ERROR(ReadWorkers(merged, machine, &plan));
  RETURN_IF_ERROR(ReadBackend(merged, &plan));
  RETURN_IF_ERROR(ReadMaster(merged, &plan));
  RETURN_IF_ERROR(ReadEndpoint(merged, &plan));
  RETURN_IF_ERROR(ReadIdentity(merged, &plan));
  RETURN_IF_ERROR(ReadRendezvousConf(merged, &plan));
  RETURN_IF_ERROR(ReadFailurePolicy(merged, &plan));
  RETURN_IF_ERROR(CheckLogsSpecs(merged));
  RETURN_IF_ERROR(Reconcile(program, merged, &plan));
  RETURN_IF_ERROR(ReadProgram(merged, &plan));
  if (merged.IsOn("dry-run")) {
    plan.request = Request::kDryRun;
  }
  return plan;
}

}  // namespace fsdprun
