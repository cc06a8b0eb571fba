#include "launcher/cli/launch_plan.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

const char* KindName(ProgramKind kind) {
  switch (kind) {
    case ProgramKind::kPythonScript:
      return "python script";
    case ProgramKind::kPythonModule:
      return "python module";
    case ProgramKind::kExecutable:
      return "executable";
  }
  return "";
}

const char* StdinName(StdinSource source) {
  switch (source) {
    case StdinSource::kInherit:
      return "inherit";
    case StdinSource::kRankZero:
      return "rank0";
    case StdinSource::kNone:
      return "none";
  }
  return "";
}

std::string Seconds(std::chrono::milliseconds duration) {
  return absl::StrCat(static_cast<double>(duration.count()) / 1000.0);
}

std::string StreamSetsText(const StreamSets& sets) {
  if (sets.of_rank.empty()) {
    return absl::StrCat(sets.of_all);
  }
  return absl::StrJoin(sets.of_rank, ",", absl::PairFormatter(":"));
}

/// Collects `key: value` lines.
class Description {
 public:
  void Line(const char* key, const std::string& value) {
    absl::StrAppend(&text_, key, ": ", value, "\n");
  }
  /// Only where it differs from the default.
  void LineIf(bool is_special, const char* key, const std::string& value) {
    if (is_special) {
      Line(key, value);
    }
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

void DescribeRendezvous(const LaunchPlan& plan, Description& description) {
  const bool is_alone =
      plan.HasAgents() || (plan.IsSingleNode() && !plan.is_agent && !plan.is_coordinator);
  description.Line("coordinator", is_alone         ? "in this process"
                                  : plan.uses_file ? "where the rendezvous file says"
                                                   : ToString(plan.endpoint));
  description.LineIf(plan.is_coordinator, "mode", "coordinator only");
  description.LineIf(plan.journal.is_given(), "journal", ToString(plan.journal));
  description.Line("run_id", plan.rdzv_id_is_random ? "random" : plan.rdzv_id);
  description.Line("join_timeout_s", Seconds(plan.join_timeout));
  if (!plan.is_agent) {
    description.Line("rendezvous", BackendName(plan.backend));
    description.Line("master_addr", plan.master_addr);
    description.Line("max_restarts", absl::StrCat(plan.max_restarts));
    description.Line("last_call_timeout_s", Seconds(plan.last_call_timeout));
    description.Line("abort_timeout_s", Seconds(plan.abort_timeout));
  }
  if (plan.node_lease.has_value()) {
    description.Line("node_lease_s", Seconds(*plan.node_lease));
  }
  if (plan.read_timeout.has_value()) {
    description.Line("read_timeout_s", Seconds(*plan.read_timeout));
  }
  if (plan.is_host.has_value()) {
    description.Line("is_host", *plan.is_host ? "yes" : "no");
  }
  description.LineIf(!plan.rendezvous_file.empty(), "rendezvous_file", plan.rendezvous_file);
  if (plan.backend == RendezvousBackend::kEtcd) {
    description.Line("etcd_prefix", plan.etcd.prefix);
    description.LineIf(plan.etcd.uses_tls, "etcd_protocol", "https");
  }
}

void DescribeAgents(const LaunchPlan& plan, Description& description) {
  if (!plan.agents.empty()) {
    description.Line("agents",
                     absl::StrJoin(plan.agents, " ", [](std::string* out, const auto& host) {
                       absl::StrAppend(out, ToString(host.daemon));
                       if (host.workers > 0) {
                         absl::StrAppend(out, " slots=", host.workers);
                       }
                     }));
  }
  if (plan.ssh.has_value()) {
    description.Line("ssh", absl::StrJoin(plan.ssh->command, " "));
    description.LineIf(!plan.ssh->program.empty(), "ssh_program", plan.ssh->program);
  }
  description.LineIf(plan.detaches, "detach", "yes");
  const ForwardedVariables& which = plan.forwarded_variables;
  description.LineIf(!which.is_default, "forward_env",
                     which.names.empty() ? "none" : absl::StrJoin(which.names, ","));
}

std::string DescribeDaemon(const LaunchPlan& plan) {
  Description description;
  description.Line("mode", "daemon");
  description.Line("listen", ToString(plan.daemon->listen));
  description.LineIf(plan.daemon->slots > 0, "slots", absl::StrCat(plan.daemon->slots));
  if (plan.daemon->devices.has_value()) {
    description.Line("devices", plan.daemon->devices->empty()
                                    ? "none"
                                    : absl::StrJoin(*plan.daemon->devices, ","));
  }
  description.Line("launcher_grace_s", Seconds(plan.daemon->lost_grace));
  description.LineIf(!plan.daemon->runtime_dir.empty(), "runtime_dir", plan.daemon->runtime_dir);
  return std::move(description).text();
}

void DescribeSecurity(const LaunchPlan& plan, Description& description) {
  description.LineIf(plan.takes_anybody, "token", "none: anybody may join");
  description.LineIf(!plan.tls_certificate.empty(), "tls_cert", plan.tls_certificate);
  description.LineIf(!plan.tls_key.empty(), "tls_key", plan.tls_key);
  description.LineIf(!plan.tls_ca.empty(), "tls_ca", plan.tls_ca);
}

void DescribeFailures(const LaunchPlan& plan, Description& description) {
  description.Line("shutdown_timeout_s", Seconds(plan.shutdown_timeout));
  if (plan.restart_backoff.count() > 0) {
    description.Line("restart_backoff_s", absl::StrCat(Seconds(plan.restart_backoff), " to ",
                                                       Seconds(plan.max_restart_backoff)));
  }
  if (plan.max_nodes > 1 && plan.quarantine_after > 0) {
    description.Line("quarantine", absl::StrCat("after ", plan.quarantine_after, " within ",
                                                Seconds(plan.quarantine_window), " s"));
  }
  const WatchPlan& watch = plan.watch;
  description.LineIf(watch.on_hang != OnHang::kReport, "on_hang", OnHangName(watch.on_hang));
  description.LineIf(!watch.looks_for_hangs, "hang_timeout", "off");
  if (watch.hang_timeout.has_value()) {
    description.Line("hang_timeout_s", Seconds(*watch.hang_timeout));
  }
  description.Line("signals", plan.signals_text);
  description.LineIf(!plan.unknown_signals.empty(), "signals_left_out",
                     absl::StrJoin(plan.unknown_signals, ","));
  description.LineIf(!plan.forwarded_signals.empty(), "signals_forwarded",
                     absl::StrJoin(plan.forwarded_signals, ","));
  description.LineIf(plan.stop_signal_to == StopSignalTo::kLeader, "stop_signal_to", "leader");
  description.LineIf(plan.exit_code_style == ExitCodeStyle::kWorker, "exit_code", "worker");
  if (plan.scheduler_job.has_value()) {
    description.Line("requeue", RequeueModeName(plan.requeue));
  }
  if (plan.requeue_margin.has_value()) {
    description.Line("requeue_margin_s", Seconds(*plan.requeue_margin));
  }
}

void DescribeOutput(const LaunchPlan& plan, Description& description) {
  description.Line("log_dir",
                   plan.log_dir.empty() ? "temporary, removed after success" : plan.log_dir);
  const OutputOptions& output = plan.output;
  const StreamSets none;
  description.LineIf(!(output.redirects == none), "redirects", StreamSetsText(output.redirects));
  description.LineIf(!(output.tee == none), "tee", StreamSetsText(output.tee));
  if (output.shown_local_ranks.has_value()) {
    description.Line("local_ranks_filter", absl::StrJoin(*output.shown_local_ranks, ","));
  }
  description.LineIf(!output.stdout_filters.empty(), "duplicate_stdout_filters",
                     absl::StrJoin(output.stdout_filters, " | "));
  description.LineIf(!output.stderr_filters.empty(), "duplicate_stderr_filters",
                     absl::StrJoin(output.stderr_filters, " | "));
  description.LineIf(!output.prefix_template.empty(), "prefix_template", output.prefix_template);
  description.LineIf(plan.event_handler == EventHandler::kConsole, "events", "console");
}

void DescribeProgram(const LaunchPlan& plan, Description& description) {
  description.LineIf(plan.has_virtual_local_rank, "virtual_local_rank", "on");
  description.LineIf(plan.passes_local_rank, "local_rank_argument", "on");
  description.LineIf(plan.numa_binding != NumaBinding::kNone, "numa_binding",
                     NumaBindingName(plan.numa_binding));
  description.LineIf(plan.stdin_source != StdinSource::kInherit, "stdin",
                     StdinName(plan.stdin_source));
  description.LineIf(plan.omp_threads != 0, "omp_threads", absl::StrCat(plan.omp_threads));
  description.Line("program_kind", KindName(plan.program_kind));
  description.Line("program", absl::StrJoin(plan.program, " "));
}

}  // namespace

const char* BackendName(RendezvousBackend backend) {
  switch (backend) {
    case RendezvousBackend::kStatic:
      return "static";
    case RendezvousBackend::kC10d:
      return "c10d";
    case RendezvousBackend::kEtcd:
      return "etcd";
  }
  return "";
}

const char* RequeueModeName(RequeueMode mode) {
  switch (mode) {
    case RequeueMode::kAuto:
      return "auto";
    case RequeueMode::kAlways:
      return "always";
    case RequeueMode::kNever:
      return "never";
  }
  return "";
}

const char* OnHangName(OnHang on_hang) {
  switch (on_hang) {
    case OnHang::kReport:
      return "report";
    case OnHang::kRestart:
      return "restart";
    case OnHang::kAbort:
      return "abort";
  }
  return "";
}

const char* NumaBindingName(NumaBinding binding) {
  switch (binding) {
    case NumaBinding::kNone:
      return "none";
    case NumaBinding::kNode:
      return "node";
    case NumaBinding::kSocket:
      return "socket";
    case NumaBinding::kExclusive:
      return "exclusive";
    case NumaBinding::kCoreComplex:
      return "core-complex";
  }
  return "";
}

const char* ShellName(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return "bash";
    case Shell::kZsh:
      return "zsh";
    case Shell::kFish:
      return "fish";
  }
  return "";
}

std::string ToString(const HostPort& endpoint) {
  if (endpoint.host.find(':') != std::string::npos) {
    return absl::StrCat("[", endpoint.host, "]:", endpoint.port);
  }
  return absl::StrCat(endpoint.host, ":", endpoint.port);
}

std::string ToString(const JournalPlace& place) {
  if (place.etcd.empty()) {
    return place.folder;
  }
  const auto add = [](std::string* out, const HostPort& member) { *out += ToString(member); };
  return absl::StrCat("etcd://", absl::StrJoin(place.etcd, ",", add), place.prefix);
}

std::string DescribePlan(const LaunchPlan& plan) {
  if (plan.daemon.has_value()) {
    return DescribeDaemon(plan);
  }
  if (!plan.attached_session.empty()) {
    return absl::StrCat("job: ", ToString(plan.attached_daemon), "/", plan.attached_session, "\n");
  }
  Description description;
  if (!plan.is_agent) {
    description.Line("nodes", plan.min_nodes == plan.max_nodes
                                  ? absl::StrCat(plan.min_nodes)
                                  : absl::StrCat(plan.min_nodes, ":", plan.max_nodes));
  }
  description.LineIf(!plan.is_coordinator, "workers_per_node", absl::StrCat(plan.nproc_per_node));
  description.LineIf(plan.node_rank >= 0, "node_rank", absl::StrCat(plan.node_rank));
  description.LineIf(!plan.is_coordinator, "role", plan.role);
  DescribeRendezvous(plan, description);
  DescribeAgents(plan, description);
  DescribeSecurity(plan, description);
  DescribeFailures(plan, description);
  if (!plan.is_coordinator) {
    DescribeOutput(plan, description);
    DescribeProgram(plan, description);
  }
  return std::move(description).text();
}

}  // namespace fsdprun
