#include "launcher/run/meeting.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/run/machine.h"

namespace fsdprun {
namespace {

constexpr Duration kProbeTimeout = std::chrono::milliseconds(1000);

// Adds the process that holds the port to "address in use".
absl::Status NameHolder(const absl::Status& status, uint16_t port, absl::string_view advice) {
  const std::string holder = PortHolder(port);
  return absl::AlreadyExistsError(
      absl::StrCat(status.message(), holder.empty() ? "" : absl::StrCat(" (held by ", holder, ")"),
                   "; ", advice));
}

// The resolver may be slow in a healthy cluster; a dead name service takes up to half a minute to
// say so.
constexpr Duration kLookUpTimeout = std::chrono::seconds(5);

using IsCancelled = std::function<bool()>;

absl::StatusOr<std::vector<std::string>> Find(const std::string& host,
                                              const IsCancelled& is_cancelled) {
  return LookUp(host, {MonoNow() + kLookUpTimeout, is_cancelled});
}

// An address of `host` for all nodes of the job; hides_own_address if only this machine knows the
// name under it.
absl::StatusOr<AddressChoice> SharedAddress(const std::string& host,
                                            const IsCancelled& is_cancelled) {
  ASSIGN_OR_RETURN(const auto addresses, Find(host, is_cancelled));
  AddressChoice choice = ChooseAddress(host, HostName(), addresses);
  const absl::StatusOr<std::string> routable =
      choice.hides_own_address ? RoutableAddress() : choice.address;
  // A machine without a network is alone: its loopback will do.
  return routable.ok() ? AddressChoice{*routable, choice.hides_own_address}
                       : AddressChoice{choice.address, false};
}

absl::StatusOr<std::string> OwnAddress(const LaunchPlan& plan, const IsCancelled& is_cancelled,
                                       const std::string& fallback) {
  if (plan.local_addr.empty()) {
    return fallback;
  }
  ASSIGN_OR_RETURN(const AddressChoice choice, SharedAddress(plan.local_addr, is_cancelled));
  if (!IsOwnAddress(choice.address)) {
    return absl::UnavailableError(
        absl::StrCat("--local-addr: '", plan.local_addr, "' is not an address of this machine"));
  }
  return choice.address;
}

// One node: only the workers' store listens, in static mode on the master port.
absl::StatusOr<Meeting> MeetAlone(const LaunchPlan& plan, const IsCancelled& is_cancelled) {
  Meeting meeting{.hosts = true};
  ASSIGN_OR_RETURN(meeting.node_address, OwnAddress(plan, is_cancelled, "127.0.0.1"));
  if (plan.backend == RendezvousBackend::kC10d) {
    return meeting;
  }
  ASSIGN_OR_RETURN(const auto addresses, Find(plan.master_addr, is_cancelled));
  NumericEndpoint master{addresses.front(), plan.master_port};
  const bool is_wildcard = master.address == "0.0.0.0" || master.address == "::";
  if (!is_wildcard && !IsOwnAddress(master.address)) {
    return absl::UnavailableError(
        absl::StrCat("--master-addr: '", plan.master_addr,
                     "' is not an address of this machine, which is the only node of the job; "
                     "leave the flag out, or give --nnodes"));
  }
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

struct Place {
  NumericEndpoint listens_at;
  NumericEndpoint reached_at;
};

absl::StatusOr<Place> PlaceOfCoordinator(const LaunchPlan& plan, const IsCancelled& is_cancelled) {
  const uint16_t port = plan.endpoint.port;
  ASSIGN_OR_RETURN(const AddressChoice choice, SharedAddress(plan.endpoint.host, is_cancelled));
  if (!choice.hides_own_address) {
    return Place{{choice.address, port}, {choice.address, port}};
  }
  // The others know the name under an address that this machine does not tell: listen on all.
  ASSIGN_OR_RETURN(const std::string address, OwnAddress(plan, is_cancelled, choice.address));
  return Place{{"0.0.0.0", port}, {address, port}};
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

// A port of this machine that is taken may be our job's coordinator, or anything else. One that is
// too busy to answer yet is waited for; a program that is no launcher is not.
absl::Status CheckNeighbour(const Meeting& meeting) {
  absl::Status probe = ProbeHttp2(meeting.endpoint, MonoNow() + kProbeTimeout);
  const std::string holder = PortHolder(meeting.endpoint.port);
  if (absl::IsUnavailable(probe) && !holder.empty() && !absl::StrContains(holder, "(fsdprun)")) {
    probe = absl::FailedPreconditionError(
        absl::StrCat("what listens on ", ToString(meeting.endpoint), " is no coordinator"));
  }
  if (absl::IsFailedPrecondition(probe)) {
    return NameHolder(probe, meeting.endpoint.port, "choose another port for the rendezvous");
  }
  return absl::OkStatus();
}

absl::Status HostOrJoin(const LaunchPlan& plan, const Place& place, Meeting* meeting) {
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
    absl::StatusOr<UniqueFd> listener = BindListener(place.listens_at);
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
                             CliProgram program, const std::function<bool()>& is_cancelled) {
  if (program == CliProgram::kFsdprun && plan.IsSingleNode()) {
    return MeetAlone(plan, is_cancelled);
  }
  Meeting meeting;
  ASSIGN_OR_RETURN(const Place place, PlaceOfCoordinator(plan, is_cancelled));
  meeting.endpoint = place.reached_at;
  RETURN_IF_ERROR(TakeToken(plan, environment, &meeting));
  if (program == CliProgram::kFsdprun) {
    RETURN_IF_ERROR(HostOrJoin(plan, place, &meeting));
  }
  std::string fallback = meeting.endpoint.address;
  if (!meeting.hosts && plan.local_addr.empty()) {
    ASSIGN_OR_RETURN(fallback, AddressTowards(meeting.endpoint));
  }
  ASSIGN_OR_RETURN(meeting.node_address, OwnAddress(plan, is_cancelled, fallback));
  return meeting;
}

}  // namespace fsdprun
