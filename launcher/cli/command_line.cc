#include "launcher/cli/command_line.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/cli/raw_flags.h"

namespace fsdprun {
namespace {

constexpr uint16_t kDefaultC10dPort = 29400;
constexpr int kMaxNodes = 65536;
/// The keeper and the coordinator refuse more.
constexpr int kMaxWorkersPerNode = 4096;
/// A file name contains the id with a prefix and a suffix.
constexpr size_t kMaxRunIdBytes = 200;

absl::StatusOr<int> ToInt(const RawValue& value, int minimum, absl::string_view expected) {
  int number = 0;
  if (!absl::SimpleAtoi(value.text, &number) || number < minimum) {
    return InvalidValue(value, expected);
  }
  return number;
}

absl::StatusOr<uint16_t> ToPort(const RawValue& value) {
  int number = 0;
  if (!absl::SimpleAtoi(value.text, &number) || number < 0 || number > 65535) {
    return InvalidValue(value, "a port (0 to 65535)");
  }
  return static_cast<uint16_t>(number);
}

absl::StatusOr<std::chrono::milliseconds> ToSeconds(const RawValue& value, bool zero_allowed) {
  double seconds = 0;
  const bool is_number = absl::SimpleAtod(value.text, &seconds) && seconds <= 1e8;
  if (!is_number || !(zero_allowed ? seconds >= 0 : seconds > 0)) {
    return InvalidValue(
        value, zero_allowed ? "a number of seconds, 0 or more" : "a number of seconds above 0");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

absl::Status ReadNodes(const RawFlags& flags, LaunchPlan* plan) {
  const RawValue* value = flags.Find("nnodes");
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

absl::Status ReadWorkers(const RawFlags& flags, const MachineFacts& machine, LaunchPlan* plan) {
  const RawValue* value = flags.Find("nproc-per-node");
  if (value == nullptr) {
    return absl::OkStatus();
  }
  if (value->text == "cpu" || (value->text == "auto" && machine.gpus == 0)) {
    plan->nproc_per_node = machine.usable_cpus;
  } else if (value->text == "gpu" || value->text == "auto") {
    if (machine.gpus == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          value->source,
          ": 'gpu' was requested, but no NVIDIA GPU is visible on this machine; give a number or "
          "cpu"));
    }
    plan->nproc_per_node = machine.gpus;
  } else if (value->text == "xpu" || value->text == "mps") {
    return absl::InvalidArgumentError(absl::StrCat("torchrun's --nproc-per-node ", value->text,
                                                   " is not supported yet; give a number"));
  } else {
    ASSIGN_OR_RETURN(plan->nproc_per_node,
                     ToInt(*value, 1, "a number of 1 or more, cpu, gpu or auto"));
  }
  if (plan->nproc_per_node > kMaxWorkersPerNode) {
    return absl::InvalidArgumentError(absl::StrCat(value->source, ": '", value->text, "' means ",
                                                   plan->nproc_per_node, " workers, at most ",
                                                   kMaxWorkersPerNode, " run on one node"));
  }
  return absl::OkStatus();
}

// k=v,k=v with blanks trimmed; the last of equal keys wins. Unknown keys are ignored, as by
// torchrun.
absl::Status ReadRendezvousConf(const RawFlags& flags, LaunchPlan* plan) {
  const RawValue* value = flags.Find("rdzv-conf");
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

absl::Status ReadBackend(const RawFlags& flags, LaunchPlan* plan) {
  const RawValue* value = flags.Find("rdzv-backend");
  if (value == nullptr || value->text == "static" || value->text.empty()) {
    return absl::OkStatus();
  }
  if (value->text == "etcd" || value->text == "etcd-v2" || value->text == "zeus-adapter") {
    return absl::InvalidArgumentError(absl::StrCat("torchrun's --rdzv-backend ", value->text,
                                                   " is not supported yet; give c10d or static"));
  }
  if (value->text != "c10d") {
    return InvalidValue(*value, "c10d or static");
  }
  plan->backend = RendezvousBackend::kC10d;
  return absl::OkStatus();
}

/// Brackets can only surround an IPv6 address that is followed by a port.
bool IsHost(absl::string_view host) {
  return !host.empty() && host.find_first_of("[]") == absl::string_view::npos;
}

absl::Status ReadMaster(const RawFlags& flags, LaunchPlan* plan) {
  if (const RawValue* value = flags.Find("master-addr"); value != nullptr && !value->text.empty()) {
    plan->master_addr = value->text;
    if (absl::StartsWith(plan->master_addr, "[") && absl::EndsWith(plan->master_addr, "]")) {
      plan->master_addr = plan->master_addr.substr(1, plan->master_addr.size() - 2);
    }
    if (!IsHost(plan->master_addr)) {
      return absl::InvalidArgumentError(
          absl::StrCat(value->source, ": '", value->text, "' is not a host name or address"));
    }
  }
  if (const RawValue* value = flags.Find("master-port")) {
    ASSIGN_OR_RETURN(plan->master_port, ToPort(*value));
    plan->master_port_is_explicit = true;
  }
  return absl::OkStatus();
}

absl::Status ReadEndpoint(const RawFlags& flags, LaunchPlan* plan) {
  const RawValue* value = flags.Find("rdzv-endpoint");
  const bool is_given = value != nullptr && !value->text.empty();
  if (is_given) {
    // fsdp-agent has no --rdzv-backend flag; the coordinators it connects to use c10d's default
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

absl::Status ReadIdentity(const RawFlags& flags, LaunchPlan* plan) {
  if (const RawValue* value = flags.Find("rdzv-id")) {
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
  if (const RawValue* value = flags.Find("node-rank")) {
    ASSIGN_OR_RETURN(plan->node_rank, ToInt(*value, 0, "a rank of 0 or more"));
  }
  if (const RawValue* value = flags.Find("role"); value != nullptr && !value->text.empty()) {
    plan->role = value->text;
  }
  if (const RawValue* value = flags.Find("local-addr")) {
    plan->local_addr = value->text;
  }
  if (const RawValue* value = flags.Find("token-file")) {
    plan->token_file = value->text;
  }
  if (const RawValue* value = flags.Find("log-dir")) {
    plan->log_dir = value->text;
  }
  return absl::OkStatus();
}

absl::Status ReadFailurePolicy(const RawFlags& flags, LaunchPlan* plan) {
  if (const RawValue* value = flags.Find("max-restarts")) {
    ASSIGN_OR_RETURN(plan->max_restarts, ToInt(*value, 0, "a number of 0 or more"));
  }
  if (const RawValue* value = flags.Find("shutdown-timeout")) {
    ASSIGN_OR_RETURN(plan->shutdown_timeout, ToSeconds(*value, true));
  }
  if (const RawValue* value = flags.Find("abort-timeout")) {
    ASSIGN_OR_RETURN(plan->abort_timeout, ToSeconds(*value, true));
  }
  if (const RawValue* value = flags.Find("monitor-interval")) {
    RETURN_IF_ERROR(ToSeconds(*value, false).status());
  }
  return absl::OkStatus();
}

absl::Status ReadProgram(CliProgram program, const RawFlags& flags, LaunchPlan* plan) {
  if (flags.IsOn("module") && flags.IsOn("no-python")) {
    return absl::InvalidArgumentError(
        "--module and --no-python exclude each other: a module is run by Python");
  }
  if (flags.IsOn("module")) {
    plan->program_kind = ProgramKind::kPythonModule;
  } else if (flags.IsOn("no-python")) {
    plan->program_kind = ProgramKind::kExecutable;
  }
  plan->program = flags.program;
  if (plan->program.empty() || plan->program.front().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no program to run was given: ", ProgramName(program),
                     " [flags] PROGRAM [arguments]; see ", ProgramName(program), " --help"));
  }
  return absl::OkStatus();
}

// Rules about combinations of flags, each of which is valid by itself.
absl::Status Reconcile(CliProgram program, const RawFlags& flags, LaunchPlan* plan) {
  if (flags.IsOn("standalone")) {
    if (plan->max_nodes > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--standalone runs one node, but --nnodes is ", flags.Find("nnodes")->text));
    }
    plan->backend = RendezvousBackend::kC10d;
    plan->rdzv_id_is_random = true;
  }
  if (program == CliProgram::kFsdpAgent) {
    const RawValue* endpoint = flags.Find("rdzv-endpoint");
    if (endpoint == nullptr || endpoint->text.empty() || plan->endpoint.port == 0) {
      return absl::InvalidArgumentError(
          "--rdzv-endpoint HOST:PORT is needed: where the coordinator listens");
    }
    if (plan->rdzv_id_is_random) {
      return absl::InvalidArgumentError(
          "--rdzv-id: '' is not the run id that the coordinator was given");
    }
    return absl::OkStatus();
  }
  if (plan->backend == RendezvousBackend::kC10d) {
    plan->node_rank = -1;  // as torchrun
  } else if (plan->node_rank >= plan->max_nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("--node-rank: ", plan->node_rank, " is not below --nnodes ", plan->max_nodes));
  }
  if (plan->IsSingleNode()) {
    return absl::OkStatus();
  }
  if (plan->rdzv_id_is_random) {
    return absl::InvalidArgumentError(
        "--rdzv-id: '' would become a different random id on each node; give all nodes the same "
        "id");
  }
  if (plan->endpoint.port == 0) {
    return absl::InvalidArgumentError(
        "port 0 means any free port, which the other nodes cannot know; give a port");
  }
  if (plan->backend == RendezvousBackend::kStatic) {
    plan->node_rank = std::max(plan->node_rank, 0);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, uint16_t default_port) {
  absl::string_view host = text;
  absl::string_view port;
  bool has_port = false;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t close = host.find(']');
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' lacks a closing bracket"));
    }
    port = host.substr(close + 1);
    host = host.substr(0, close);
    has_port = absl::ConsumePrefix(&port, ":");
    if (!has_port && !port.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' has text after the bracket"));
    }
  } else if (const size_t colon = text.rfind(':');
             colon != absl::string_view::npos && text.find(':') == colon) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  int number = default_port;
  const bool port_is_good =
      !has_port || (absl::SimpleAtoi(port, &number) && number >= 0 && number <= 65535);
  if (!IsHost(host) || !port_is_good) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

absl::StatusOr<LaunchPlan> ParseCommandLine(CliProgram program,
                                            const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const MachineFacts& machine) {
  ASSIGN_OR_RETURN(RawFlags flags, FlagsOfArguments(program, args));
  LaunchPlan plan;
  if (flags.IsOn("help") || flags.IsOn("version")) {
    plan.request = flags.IsOn("help") ? Request::kHelp : Request::kVersion;
    return plan;
  }
  ASSIGN_OR_RETURN(RawFlags merged, FlagsOfEnvironment(program, environment));
  for (auto& [name, value] : flags.values) {
    merged.values[name] = std::move(value);
  }
  merged.program = std::move(flags.program);
  if (merged.IsOn("standalone")) {
    // As torchrun does: rendezvous settings in the environment are ignored.
    for (const char* name :
         {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "node-rank", "master-addr", "master-port"}) {
      merged.values.erase(name);
    }
  }
  plan.is_agent = program == CliProgram::kFsdpAgent;
  RETURN_IF_ERROR(ReadNodes(merged, &plan));
  RETURN_IF_ERROR(ReadWorkers(merged, machine, &plan));
  RETURN_IF_ERROR(ReadBackend(merged, &plan));
  RETURN_IF_ERROR(ReadMaster(merged, &plan));
  RETURN_IF_ERROR(ReadEndpoint(merged, &plan));
  RETURN_IF_ERROR(ReadIdentity(merged, &plan));
  RETURN_IF_ERROR(ReadRendezvousConf(merged, &plan));
  RETURN_IF_ERROR(ReadFailurePolicy(merged, &plan));
  RETURN_IF_ERROR(Reconcile(program, merged, &plan));
  RETURN_IF_ERROR(ReadProgram(program, merged, &plan));
  plan.request = merged.IsOn("dry-run") ? Request::kDryRun : Request::kRun;
  return plan;
}

}  // namespace fsdprun
