#include "launcher/run/rendezvous.h"

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

// Adds the process that holds the port to an "address in use" error.
absl::Status WithPortHolder(const absl::Status& status, uint16_t port, absl::string_view advice) {
  const std::string holder = PortHolder(port);
  return absl::AlreadyExistsError(
      absl::StrCat(status.message(), holder.empty() ? "" : absl::StrCat(" (held by ", holder, ")"),
                   "; ", advice));
}

// The resolver may be slow in a healthy cluster; with a dead name server it needs up to half a
// minute to fail.
constexpr Duration kLookUpTimeout = std::chrono::seconds(5);

using IsCancelled = std::function<bool()>;

absl::StatusOr<std::vector<std::string>> LookUp(const std::string& host,
                                                const IsCancelled& is_cancelled) {
  return LookUpHost(host, {MonoNow() + kLookUpTimeout, is_cancelled});
}

// An address of `host` for all nodes of the job; resolves_to_loopback_here if other machines know
// the host under another one.
absl::StatusOr<AddressChoice> SharedAddress(const std::string& host,
                                            const IsCancelled& is_cancelled) {
  ASSIGN_OR_RETURN(const auto addresses, LookUp(host, is_cancelled));
  AddressChoice choice = ChooseAddress(host, HostName(), addresses);
  const absl::StatusOr<std::string> routable =
      choice.resolves_to_loopback_here ? RoutableAddress() : choice.address;
  // Without a network no other machine can join, so loopback suffices.
  return routable.ok() ? AddressChoice{*routable, choice.resolves_to_loopback_here}
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
absl::StatusOr<Rendezvous> ResolveSingleNode(const LaunchPlan& plan,
                                             const IsCancelled& is_cancelled) {
  Rendezvous rendezvous{.hosts = true};
  ASSIGN_OR_RETURN(rendezvous.node_address, OwnAddress(plan, is_cancelled, "127.0.0.1"));
  if (plan.backend == RendezvousBackend::kC10d) {
    return rendezvous;
  }
  ASSIGN_OR_RETURN(const auto addresses, LookUp(plan.master_addr, is_cancelled));
  NumericEndpoint master{addresses.front(), plan.master_port};
  const bool is_wildcard = master.address == "0.0.0.0" || master.address == "::";
  if (!is_wildcard && !IsOwnAddress(master.address)) {
    return absl::UnavailableError(
        absl::StrCat("--master-addr: '", plan.master_addr,
                     "' is not an address of this machine, which is the only node of the job; "
                     "leave the option out, or give --nnodes"));
  }
  absl::StatusOr<UniqueFd> listener = BindListener(master);
  if (absl::IsAlreadyExists(listener.status())) {
    if (plan.master_port_is_explicit) {
      return WithPortHolder(listener.status(), master.port, "choose another --master-port");
    }
    const uint16_t busy_port = std::exchange(master.port, uint16_t{0});
    ASSIGN_OR_RETURN(listener, BindListener(master));
    ASSIGN_OR_RETURN(const uint16_t port, PortOf(*listener));
    Log(LogLevel::kWarning, absl::StrCat("MASTER_PORT ", busy_port, " is busy, using ", port));
  }
  RETURN_IF_ERROR(listener.status());
  rendezvous.listener = *std::move(listener);
  rendezvous.node_address = master.address;
  return rendezvous;
}

struct CoordinatorAddress {
  NumericEndpoint bind_to;
  NumericEndpoint advertised;
};

absl::StatusOr<CoordinatorAddress> FindCoordinator(const LaunchPlan& plan,
                                                   const IsCancelled& is_cancelled) {
  const uint16_t port = plan.endpoint.port;
  ASSIGN_OR_RETURN(const AddressChoice choice, SharedAddress(plan.endpoint.host, is_cancelled));
  if (!choice.resolves_to_loopback_here) {
    return CoordinatorAddress{{choice.address, port}, {choice.address, port}};
  }
  // Other machines may resolve the name to any address of this one: listen on all.
  ASSIGN_OR_RETURN(const std::string address, OwnAddress(plan, is_cancelled, choice.address));
  return CoordinatorAddress{{"0.0.0.0", port}, {address, port}};
}

absl::Status ResolveToken(const LaunchPlan& plan, const Environment& environment,
                          Rendezvous* rendezvous) {
  ASSIGN_OR_RETURN(rendezvous->token, GivenToken(environment, plan.token_file));
  if (!rendezvous->token.empty()) {
    return absl::OkStatus();
  }
  if (!IsLoopback(rendezvous->endpoint.address)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the coordinator's address ", ToString(rendezvous->endpoint),
                     " can be reached from other machines, so the job needs a token: set "
                     "FSDPRUN_TOKEN to the same random text on all "
                     "nodes (for example from `openssl rand -hex 32`), or give --token-file"));
  }
  ASSIGN_OR_RETURN(rendezvous->token_path,
                   TokenFile::Path(environment, rendezvous->endpoint.port, plan.rdzv_id));
  return absl::OkStatus();
}

absl::Status HostCoordinator(UniqueFd listener, Rendezvous* rendezvous) {
  rendezvous->hosts = true;
  rendezvous->listener = std::move(listener);
  if (rendezvous->token.empty()) {
    ASSIGN_OR_RETURN(TokenFile file, TokenFile::Create(rendezvous->token_path));
    rendezvous->token = file.token();
    rendezvous->token_file.emplace(std::move(file));
  }
  return absl::OkStatus();
}

// The port is in use on this machine, by our job's coordinator or by another program. A launcher
// that does not answer yet is busy and will be retried; any other program is an error.
absl::Status CheckPortHolder(const Rendezvous& rendezvous) {
  absl::Status probe = ProbeHttp2(rendezvous.endpoint, MonoNow() + kProbeTimeout);
  const std::string holder = PortHolder(rendezvous.endpoint.port);
  if (absl::IsUnavailable(probe) && !holder.empty() && !absl::StrContains(holder, "(fsdprun)")) {
    probe = absl::FailedPreconditionError(absl::StrCat(
        "the program that listens on ", ToString(rendezvous.endpoint), " is no coordinator"));
  }
  if (absl::IsFailedPrecondition(probe)) {
    return WithPortHolder(probe, rendezvous.endpoint.port,
                          "choose another port for the rendezvous");
  }
  return absl::OkStatus();
}

absl::Status HostOrJoin(const LaunchPlan& plan, const CoordinatorAddress& coordinator,
                        Rendezvous* rendezvous) {
  const bool is_static = plan.backend == RendezvousBackend::kStatic;
  const bool is_own = IsOwnAddress(rendezvous->endpoint.address);
  const bool must_host = is_static && plan.node_rank == 0;
  if (must_host && !is_own) {
    return absl::UnavailableError(
        absl::StrCat("this is node rank 0, but ", rendezvous->endpoint.address,
                     " is not an address of this machine; give --master-addr an address of "
                     "node 0, or this node another --node-rank"));
  }
  if (must_host || (!is_static && is_own)) {
    absl::StatusOr<UniqueFd> listener = BindListener(coordinator.bind_to);
    if (listener.ok()) {
      return HostCoordinator(*std::move(listener), rendezvous);
    }
    if (!absl::IsAlreadyExists(listener.status())) {
      return listener.status();
    }
    if (must_host) {
      return WithPortHolder(listener.status(), rendezvous->endpoint.port,
                            "choose another --master-port");
    }
  }
  return is_own ? CheckPortHolder(*rendezvous) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rendezvous> ResolveRendezvous(const LaunchPlan& plan, const Environment& environment,
                                             CliProgram program,
                                             const std::function<bool()>& is_cancelled) {
  if (program == CliProgram::kFsdprun && plan.IsSingleNode()) {
    return ResolveSingleNode(plan, is_cancelled);
  }
  Rendezvous rendezvous;
  ASSIGN_OR_RETURN(const CoordinatorAddress coordinator, FindCoordinator(plan, is_cancelled));
  rendezvous.endpoint = coordinator.advertised;
  RETURN_IF_ERROR(ResolveToken(plan, environment, &rendezvous));
  if (program == CliProgram::kFsdprun) {
    RETURN_IF_ERROR(HostOrJoin(plan, coordinator, &rendezvous));
  }
  std::string fallback = rendezvous.endpoint.address;
  if (!rendezvous.hosts && plan.local_addr.empty()) {
    ASSIGN_OR_RETURN(fallback, AddressTowards(rendezvous.endpoint));
  }
  ASSIGN_OR_RETURN(rendezvous.node_address, OwnAddress(plan, is_cancelled, fallback));
  return rendezvous;
}

}  // namespace fsdprun
