#include "launcher/cli/plan_agents.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/cli/host_list.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

// Whoever has the nodes started knows where they meet.
absl::Status CheckAlone(const RawOptions& options, const char* name) {
  for (const char* other : {"standalone", "coordinator", "rdzv-endpoint", "rdzv-backend",
                            "master-addr", "master-port", "node-rank", "srun-args"}) {
    const RawValue* value = options.Find(other);
    const bool is_switch =
        absl::string_view(other) == "standalone" || absl::string_view(other) == "coordinator";
    const bool is_given =
        is_switch ? options.IsOn(other) : value != nullptr && !value->text.empty();
    if (is_given) {
      return absl::OutOfRangeError(
          absl::StrCat("--", name, " and ", value->source, " exclude each other: with --", name,
                       " this program hosts the coordinator, on a free port, and tells the nodes"));
    }
  }
  return absl::OkStatus();
}

// How the nodes' parts are started without daemons.
absl::Status ReadSsh(const RawOptions& options, bool has_hosts, LaunchPlan* plan) {
  if (!options.IsOn("ssh")) {
    for (const char* name : {"ssh-command", "ssh-program"}) {
      if (const RawValue* value = options.Find(name); value != nullptr && !value->text.empty()) {
        return absl::OutOfRangeError(absl::StrCat(value->source, " is for --ssh only"));
      }
    }
    return absl::OkStatus();
  }
  if (!has_hosts) {
    return absl::OutOfRangeError("--ssh needs the nodes: name them with --hostfile or --agents");
  }
  if (plan->detaches) {
    return absl::OutOfRangeError(
        "--ssh and --detach exclude each other: without daemons a job needs its launcher; start it "
        "in tmux, screen or systemd-run to leave it alone");
  }
  SshOptions ssh;
  if (const RawValue* value = options.Find("ssh-command");
      value != nullptr && !value->text.empty()) {
    ssh.command = absl::StrSplit(value->text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
    if (ssh.command.empty()) {
      return InvalidValue(*value, "a program, with its first words if need be");
    }
  }
  if (const RawValue* value = options.Find("ssh-program")) {
    ssh.program = value->text;
  }
  plan->ssh = std::move(ssh);
  return absl::OkStatus();
}

absl::Status ReadHosts(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* agents = options.Find("agents");
  const RawValue* file = options.Find("hostfile");
  const bool has_agents = agents != nullptr && !agents->text.empty();
  const bool has_file = file != nullptr && !file->text.empty();
  if (has_agents && has_file) {
    return absl::OutOfRangeError("--agents and --hostfile exclude each other; give one of them");
  }
  if (const RawValue* forwarded = options.Find("forward-env")) {
    ASSIGN_OR_RETURN(plan->forwarded_variables, ParseForwardEnv(*forwarded));
    if (!has_agents && !has_file) {
      return absl::OutOfRangeError(absl::StrCat(
          forwarded->source,
          " is for --agents and --hostfile: other launchers' workers run in its environment"));
    }
  }
  plan->detaches = options.IsOn("detach");
  if (plan->detaches && !has_agents && !has_file) {
    return absl::OutOfRangeError(
        "--detach is for --agents and --hostfile: a job without daemons needs its launcher");
  }
  RETURN_IF_ERROR(ReadSsh(options, has_agents || has_file, plan));
  if (!has_agents && !has_file) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(CheckAlone(options, has_agents ? "agents" : "hostfile"));
  plan->backend = RendezvousBackend::kC10d;
  if (has_file) {
    plan->host_file = file->text;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      std::vector<AgentHost> hosts,
      ParseAgents(*agents, plan->ssh.has_value() ? kDefaultSshPort : kDefaultDaemonPort));
  return TakeHosts(std::move(hosts), plan);
}

// `HOST[:PORT]/ID`, as --detach prints it.
absl::Status ReadAttach(const RawOptions& options, LaunchPlan* plan) {
  const RawValue* job = options.Find("attach");
  if (job == nullptr) {
    return absl::OkStatus();
  }
  for (const char* other : {"agents", "hostfile", "ssh", "detach", "coordinator", "standalone"}) {
    const RawValue* value = options.Find(other);
    if (value != nullptr && !value->text.empty() && value->text != "0") {
      return absl::OutOfRangeError(absl::StrCat("--attach and ", value->source,
                                                " exclude each other: the job runs already"));
    }
  }
  const size_t slash = job->text.rfind('/');
  const auto daemon =
      ParseHostPort(absl::string_view(job->text).substr(0, slash), kDefaultDaemonPort);
  if (slash == std::string::npos || !daemon.ok() || daemon->port == 0 ||
      slash + 1 == job->text.size()) {
    return InvalidValue(*job, "a job's id, HOST:PORT/NUMBER, as --detach has printed it");
  }
  plan->attached_daemon = *daemon;
  plan->attached_session = job->text.substr(slash + 1);
  return absl::OkStatus();
}

absl::Status ReadDaemon(const RawOptions& options, LaunchPlan* plan) {
  if (!options.IsOn("daemon")) {
    for (const char* name : {"listen", "slots", "devices", "launcher-grace", "runtime-dir"}) {
      if (const RawValue* value = options.Find(name)) {
        return absl::OutOfRangeError(absl::StrCat(value->source, " is for --daemon only"));
      }
    }
    return absl::OkStatus();
  }
  DaemonOptions daemon{.listen = {"::", kDefaultDaemonPort}};
  if (const RawValue* value = options.Find("listen"); value != nullptr && !value->text.empty()) {
    const auto listen = ParseHostPort(value->text, kDefaultDaemonPort);
    if (!listen.ok()) {
      return InvalidValue(*value, "an address of this machine, with a port if need be");
    }
    daemon.listen = *listen;
  }
  if (const RawValue* value = options.Find("slots")) {
    ASSIGN_OR_RETURN(daemon.slots, ToInt(*value, 1, "a number of 1 or more"));
  }
  if (const RawValue* value = options.Find("devices"); value != nullptr && !value->text.empty()) {
    daemon.devices.emplace();
    if (value->text != "none") {
      for (const absl::string_view device : absl::StrSplit(value->text, ',')) {
        daemon.devices->emplace_back(absl::StripAsciiWhitespace(device));
        if (daemon.devices->back().empty()) {
          return InvalidValue(*value,
                              "none, or devices with commas between them, as in "
                              "CUDA_VISIBLE_DEVICES");
        }
      }
    }
  }
  if (const RawValue* value = options.Find("launcher-grace")) {
    ASSIGN_OR_RETURN(daemon.lost_grace, ToSeconds(*value, /*zero_allowed=*/false));
  }
  if (const RawValue* value = options.Find("runtime-dir")) {
    daemon.runtime_dir = value->text;
  }
  plan->daemon = std::move(daemon);
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanAgents(const RawOptions& options, LaunchPlan* plan) {
  if (plan->is_agent) {
    return ReadDaemon(options, plan);
  }
  RETURN_IF_ERROR(ReadAttach(options, plan));
  return ReadHosts(options, plan);
}

}  // namespace fsdprun
