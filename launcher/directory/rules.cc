#include "launcher/directory/rules.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "launcher/directory/numeric_address.h"

namespace fsdprun {
namespace {

constexpr const char* kAllAddresses = "::";

bool IsLocalhost(absl::string_view host) {
  return absl::EqualsIgnoreCase(host, "localhost") ||
         absl::StartsWithIgnoreCase(host, "localhost.") ||
         absl::EndsWithIgnoreCase(host, ".localhost") || host == "ip6-localhost" ||
         host == "ip6-loopback";
}

bool Contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::vector<std::string> OnNetworks(const std::vector<std::string>& addresses) {
  std::vector<std::string> found;
  std::copy_if(addresses.begin(), addresses.end(), std::back_inserter(found),
               [](const std::string& address) { return !IsLoopback(address); });
  return found;
}

// The same for every spelling and whatever the resolver knows, so that two launchers agree on what
// to bind first.
HostView LocalhostView() {
  return {.is_own = true,
          .is_loopback = true,
          .addresses = {"127.0.0.1", "::1"},
          .listen_on = {"127.0.0.1", "::1"}};
}

// Other machines may resolve the own name to any address of this one: listen on all.
HostView HiddenView(const HostFacts& facts) {
  if (!facts.routable.empty()) {
    return {.is_own = true,
            .is_hidden = true,
            .addresses = {facts.routable},
            .listen_on = {kAllAddresses}};
  }
  // Without a network no other machine can join, so loopback suffices.
  HostView view = LocalhostView();
  view.is_hidden = facts.resolved.empty();
  if (!facts.resolved.empty()) {
    view.addresses = facts.resolved;
    view.listen_on = facts.resolved;
  }
  return view;
}

}  // namespace

HostRole RoleOf(const LaunchPlan& plan) {
  if (plan.is_agent) {
    return HostRole::kNever;
  }
  if (plan.backend == RendezvousBackend::kStatic) {
    return plan.node_rank == 0 ? HostRole::kMust : HostRole::kNever;
  }
  if (plan.is_host.has_value()) {
    return *plan.is_host ? HostRole::kMust : HostRole::kNever;
  }
  return HostRole::kMay;
}

bool MayBeOwnName(absl::string_view host, absl::string_view own_name) {
  const auto first_label = [](absl::string_view name) { return name.substr(0, name.find('.')); };
  return !IsNumericAddress(host) && !IsLocalhost(host) &&
         absl::EqualsIgnoreCase(first_label(host), first_label(own_name));
}

HostView ViewHost(const HostFacts& facts) {
  if (IsLocalhost(facts.host)) {
    return LocalhostView();
  }
  if (IsWildcard(facts.host)) {
    HostView view = HiddenView(facts);
    view.addresses = {facts.routable.empty() ? "127.0.0.1" : facts.routable};
    view.is_hidden = true;
    view.listen_on = {facts.host};
    return view;
  }
  std::vector<std::string> on_networks = OnNetworks(facts.resolved);
  if (!on_networks.empty()) {
    HostView view;
    view.is_own = absl::EqualsIgnoreCase(facts.host, facts.own_name) ||
                  std::any_of(on_networks.begin(), on_networks.end(), [&](const std::string& a) {
                    return Contains(facts.own_addresses, a);
                  });
    view.addresses = std::move(on_networks);
    view.listen_on = {kAllAddresses};
    return view;
  }
  if (MayBeOwnName(facts.host, facts.own_name)) {
    return HiddenView(facts);
  }
  return {.is_own = true,
          .is_loopback = true,
          .addresses = facts.resolved,
          .listen_on = facts.resolved};
}

HostView ViewForeignName(const std::string& routable) {
  return {.is_foreign = true, .addresses = {routable.empty() ? "127.0.0.1" : routable}};
}

FirstMove FirstMoveOf(HostRole role, RendezvousBackend backend, bool is_own) {
  switch (role) {
    case HostRole::kNever:
      return FirstMove::kJoin;
    case HostRole::kMay:
      return is_own ? FirstMove::kBind : FirstMove::kJoin;
    case HostRole::kMust:
      break;
  }
  // An endpoint may be the address of something in front of this machine (a service of Kubernetes),
  // as whoever says is_host knows. A master address is the machine's own.
  return is_own || backend != RendezvousBackend::kStatic ? FirstMove::kBind : FirstMove::kRefuse;
}

NextMove AfterBinding(HostRole role, const absl::Status& bound) {
  if (bound.ok()) {
    return NextMove::kHost;
  }
  if (!absl::IsAlreadyExists(bound)) {
    return NextMove::kFail;
  }
  return role == HostRole::kMust ? NextMove::kNameHolder : NextMove::kCheckHolder;
}

std::string StoreAddress(const LaunchPlan& plan, const StoreNaming& naming) {
  // The host's store listens where its coordinator does.
  const bool listens_on_local = !naming.hosts || !naming.endpoint.is_loopback ||
                                naming.local.is_loopback || naming.local.is_foreign;
  if (!plan.local_addr.empty() && listens_on_local) {
    return naming.local.is_hidden ? naming.node_address : plan.local_addr;
  }
  if (!naming.hosts) {
    return naming.node_address;
  }
  const bool is_as_written =
      plan.backend == RendezvousBackend::kStatic && !naming.endpoint.is_hidden;
  return is_as_written ? plan.endpoint.host : naming.host_address;
}

}  // namespace fsdprun
