#include "launcher/run/meeting.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr Duration kProbeTimeout = std::chrono::milliseconds(1500);

// Adds the process that holds the port to "address in use".
absl::Status NameHolder(const absl::Status& status, uint16_t port, absl::string_view advice) {
  const std::string holder = PortHolder(port);
  return absl::AlreadyExistsError(
      absl::StrCat(status.message(), holder.empty() ? "" : absl::StrCat(" (held by ", holder, ")"),
                   "; ", advice));
}

absl::StatusOr<std::string> OwnAddress(const LaunchPlan& plan, const std::string& fallback) {
  if (plan.local_addr.empty()) {
    return fallback;
  }
  ASSIGN_OR_RETURN(const NumericEndpoint resolved, Resolve({plan.local_addr, 0}));
  if (!IsOwnAddress(resolved.address)) {
    return absl::UnavailableError(
        absl::StrCat("--local-addr: '", plan.local_addr, "' is not an address of this machine"));
  }
  return resolved.address;
}

// One node: only the workers' store listens, in static mode on the master port.
absl::StatusOr<Meeting> MeetAlone(const LaunchPlan& plan) {
  Meeting meeting{.hosts = true};
  ASSIGN_OR_RETURN(meeting.node_address, OwnAddress(plan, "127.0.0.1"));
  if (plan.backend == RendezvousBackend::kC10d) {
    return meeting;
  }
  ASSIGN_OR_RETURN(NumericEndpoint master, Resolve({plan.master_addr, plan.master_port}));
  absl::StatusOr<UniqueFd> listener = BindListener(master);
  if (absl::IsAlreadyExists(listener.status())) {
    if (plan.master_port_is_explicit) {
      return NameHolder(listener.status(), master.port, "choose another --master-port");
    }
    const uint16_t busy_port = std::exchange(master.port, uint16_t{0});
    ASSIGN_OR_RETURN(listener, BindListener(master));
    ASSIGN_OR_RETURN(const uint16_t port, PortOf(*listener));
    Log(LogLevel::kWarning, absl::StrCat("MASTER_PORT ", busy_port, " is busy, using ", port));
  }
  RETURN_IF_ERROR(listener.status());
  meeting.listener = *std::move(listener);
  meeting.node_address = master.address;
  return meeting;
}

absl::Status TakeToken(const LaunchPlan& plan, const Environment& environment, Meeting* meeting) {
  ASSIGN_OR_RETURN(meeting->token, GivenToken(environment, plan.token_file));
  if (!meeting->token.empty()) {
    return absl::OkStatus();
  }
  if (!IsLoopback(meeting->endpoint.address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator's address ", ToString(meeting->endpoint),
                     " can be reached from other machines, so the job needs a token: set "
                     "FSDPRUN_TOKEN to the same random text on all "
                     "nodes (for example from `openssl rand -hex 32`), or give --token-file"));
  }
  ASSIGN_OR_RETURN(meeting->token_path,
                   TokenFile::Path(environment, meeting->endpoint.port, plan.rdzv_id));
  return absl::OkStatus();
}

absl::Status Host(UniqueFd listener, Meeting* meeting) {
  meeting->hosts = true;
  meeting->listener = std::move(listener);
  if (meeting->token.empty()) {
    ASSIGN_OR_RETURN(TokenFile file, TokenFile::Create(meeting->token_path));
    meeting->token = file.token();
    meeting->token_file.emplace(std::move(file));
  }
  return absl::OkStatus();
}

// A port of this machine that is taken may be our job's coordinator, or anything else.
absl::Status CheckNeighbour(const Meeting& meeting) {
  const absl::Status probe = ProbeHttp2(meeting.endpoint, MonoNow() + kProbeTimeout);
  if (absl::IsFailedPrecondition(probe)) {
    return NameHolder(probe, meeting.endpoint.port, "choose another port for the rendezvous");
  }
  return absl::OkStatus();
}

absl::Status HostOrJoin(const LaunchPlan& plan, Meeting* meeting) {
  const bool is_static = plan.backend == RendezvousBackend::kStatic;
  const bool is_own = IsOwnAddress(meeting->endpoint.address);
  const bool must_host = is_static && plan.node_rank == 0;
  if (must_host && !is_own) {
    return absl::UnavailableError(
        absl::StrCat("this is node rank 0, but ", meeting->endpoint.address,
                     " is not an address of this machine; give --master-addr an address of "
                     "node 0, or this node another --node-rank"));
  }
  if (must_host || (!is_static && is_own)) {
    absl::StatusOr<UniqueFd> listener = BindListener(meeting->endpoint);
    if (listener.ok()) {
      return Host(*std::move(listener), meeting);
    }
    if (!absl::IsAlreadyExists(listener.status())) {
      return listener.status();
    }
    if (must_host) {
      return NameHolder(listener.status(), meeting->endpoint.port, "choose another --master-port");
    }
  }
  return is_own ? CheckNeighbour(*meeting) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<Meeting> Meet(const LaunchPlan& plan, const Environment& environment,
                             CliProgram program) {
  if (program == CliProgram::kFsdprun && plan.IsSingleNode()) {
    return MeetAlone(plan);
  }
  Meeting meeting;
  ASSIGN_OR_RETURN(meeting.endpoint, Resolve(plan.endpoint));
  RETURN_IF_ERROR(TakeToken(plan, environment, &meeting));
  if (program == CliProgram::kFsdprun) {
    RETURN_IF_ERROR(HostOrJoin(plan, &meeting));
  }
  std::string fallback = meeting.endpoint.address;
  if (!meeting.hosts && plan.local_addr.empty()) {
    ASSIGN_OR_RETURN(fallback, AddressTowards(meeting.endpoint));
  }
  ASSIGN_OR_RETURN(meeting.node_address, OwnAddress(plan, fallback));
  return meeting;
}

}  // namespace fsdprun
