#include "launcher/daemon/session_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/plan_workers.h"

namespace fsdprun {
namespace {

constexpr size_t kLongestText = 200;

absl::Status TakeCoordinators(const v1::SessionSpec& spec, LaunchPlan* plan) {
  for (const std::string& text : spec.coordinators()) {
    const absl::StatusOr<HostPort> endpoint = ParseHostPort(text, 0);
    if (!endpoint.ok() || endpoint->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the coordinator's address '", text, "' is none with a port"));
    }
    plan->coordinators.push_back(*endpoint);
  }
  if (plan->coordinators.empty()) {
    return absl::InvalidArgumentError("the launcher does not say where its coordinator is");
  }
  plan->endpoint = plan->coordinators.front();
  return absl::OkStatus();
}

void TakePlace(const v1::SessionSpec& spec, LaunchPlan* plan) {
  plan->agents.clear();
  plan->host_file.clear();
  plan->detaches = false;
  plan->warnings.clear();  // The launcher has told them.
  plan->backend = RendezvousBackend::kC10d;
  plan->rdzv_id = spec.run_id();
  plan->rdzv_id_is_random = false;
  plan->min_nodes = spec.min_nodes();
  plan->max_nodes = spec.max_nodes();
  plan->token_file.clear();
  plan->takes_anybody = spec.token() == kNoToken;
  if (spec.has_tls()) {
    plan->tls_certificate = spec.tls().certificate();
    plan->tls_key = spec.tls().key();
    plan->tls_ca = spec.tls().ca();
  }
}

}  // namespace

std::string Printable(std::string text) {
  text.resize(std::min(text.size(), kLongestText));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

Environment TraveledEnvironment(const v1::SessionSpec& spec) {
  Environment environment;
  for (const v1::Variable& variable : spec.environment()) {
    environment[variable.name()] = variable.value();
  }
  return environment;
}

namespace {

absl::StatusOr<LaunchPlan> ParseSpec(const v1::SessionSpec& spec, const Environment& environment,
                                     const MachineFacts& machine) {
  ASSIGN_OR_RETURN(
      LaunchPlan plan,
      ParseCommandLine(CliProgram::kFsdprun, {spec.arguments().begin(), spec.arguments().end()},
                       environment, machine));
  const bool is_job = plan.request == Request::kRun && plan.HasAgents() && spec.min_nodes() >= 1 &&
                      spec.max_nodes() >= spec.min_nodes() && spec.workers() >= 0;
  if (!is_job) {
    return absl::InvalidArgumentError(
        "the order is not one of a job; install one release of fsdprun on all machines");
  }
  TakePlace(spec, &plan);
  return plan;
}

}  // namespace

absl::StatusOr<LaunchPlan> PlanOfHead(const v1::SessionSpec& spec, const Environment& environment,
                                      const MachineFacts& machine) {
  ASSIGN_OR_RETURN(LaunchPlan plan, ParseSpec(spec, environment, machine));
  for (const v1::AgentAddress& agent : spec.head().agents()) {
    const absl::StatusOr<HostPort> daemon = ParseHostPort(agent.daemon(), 0);
    if (!daemon.ok() || daemon->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the daemon's address '", agent.daemon(), "' is none with a port"));
    }
    plan.agents.push_back({*daemon, agent.workers()});
  }
  if (plan.agents.size() < static_cast<size_t>(plan.min_nodes)) {
    return absl::InvalidArgumentError("the order has less hosts than nodes");
  }
  return plan;
}

absl::StatusOr<LaunchPlan> PlanOfSession(const v1::SessionSpec& spec,
                                         const Environment& environment,
                                         const MachineFacts& machine) {
  ASSIGN_OR_RETURN(LaunchPlan plan, ParseSpec(spec, environment, machine));
  RETURN_IF_ERROR(TakeCoordinators(spec, &plan));
  plan.is_host = false;
  plan.shares_console = true;
  plan.node_name = spec.node_name();
  plan.node_rank = spec.node_rank();
  plan.stdin_source = StdinSource::kNone;
  if (spec.workers() > 0) {
    plan.nproc_per_node = spec.workers();
    DivideCores(machine, &plan);
  }
  if (plan.nproc_per_node == 0) {
    return absl::OutOfRangeError(
        "--nproc-per-node: no such device is visible on this node; give a number or cpu");
  }
  return plan;
}

}  // namespace fsdprun
