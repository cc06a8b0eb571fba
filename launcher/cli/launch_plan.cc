#include "launcher/cli/launch_plan.h"

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

}  // namespace

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

std::string DescribePlan(const LaunchPlan& plan) {
  const std::string nodes = plan.min_nodes == plan.max_nodes
                                ? absl::StrCat(plan.min_nodes)
                                : absl::StrCat(plan.min_nodes, ":", plan.max_nodes);
  std::string text;
  const auto line = [&text](const char* key, const std::string& value) {
    absl::StrAppend(&text, key, ": ", value, "\n");
  };
  if (!plan.is_agent) {
    line("nodes", nodes);
  }
  line("workers_per_node", absl::StrCat(plan.nproc_per_node));
  if (plan.node_rank >= 0) {
    line("node_rank", absl::StrCat(plan.node_rank));
  }
  line("role", plan.role);
  const bool is_alone = plan.IsSingleNode() && !plan.is_agent;
  line("coordinator", is_alone ? "in this process" : ToString(plan.endpoint));
  line("run_id", plan.rdzv_id_is_random ? "random" : plan.rdzv_id);
  line("join_timeout_s", absl::StrCat(plan.join_timeout.count() / 1000.0));
  if (!plan.is_agent) {
    line("rendezvous", plan.backend == RendezvousBackend::kC10d ? "c10d" : "static");
    line("master_addr", plan.master_addr);
    line("max_restarts", absl::StrCat(plan.max_restarts));
    line("last_call_timeout_s", absl::StrCat(plan.last_call_timeout.count() / 1000.0));
    line("abort_timeout_s", absl::StrCat(plan.abort_timeout.count() / 1000.0));
  }
  line("shutdown_timeout_s", absl::StrCat(plan.shutdown_timeout.count() / 1000.0));
  line("signals", plan.signals_text);
  if (!plan.unknown_signals.empty()) {
    line("signals_left_out", absl::StrJoin(plan.unknown_signals, ","));
  }
  line("log_dir", plan.log_dir.empty() ? "temporary, removed after success" : plan.log_dir);
  if (plan.has_virtual_local_rank) {
    line("virtual_local_rank", "on");
  }
  line("program_kind", KindName(plan.program_kind));
  line("program", absl::StrJoin(plan.program, " "));
  return text;
}

}  // namespace fsdprun
