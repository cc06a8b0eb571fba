#include "launcher/directory/host_facts.h"

#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

// Of a process, which has one command line, once: the address is looked at anew with every search
// for the coordinator.
void WarnOfForeignName(const std::string& name, const std::string& why) {
  static std::once_flag is_told;
  std::call_once(is_told, [&] {
    Log(LogLevel::kWarning,
        absl::StrCat("--local-addr: '", name, "' does not lead to this node as seen from here (",
                     why,
                     "); it is this node's name and MASTER_ADDR all the same: if workers cannot "
                     "connect, give an address of this machine that the others can reach"));
  });
}

}  // namespace

absl::StatusOr<HostView> LookAtHost(const std::string& host, const DirectoryContext& context,
                                    Duration patience) {
  HostFacts facts{.host = host, .own_name = host == context.plan.node_name ? host : HostName()};
  const bool may_be_own = MayBeOwnName(host, facts.own_name);
  const auto known = context.plan.known_hosts.find(host);
  const bool is_known = known != context.plan.known_hosts.end();
  // Nobody else makes the own name known, and what is known need not become so.
  absl::StatusOr<std::vector<std::string>> resolved = AwaitHost(
      host,
      {may_be_own || is_known ? Duration::zero() : patience, context.is_cancelled, context.notify});
  if (resolved.ok()) {
    facts.resolved = *std::move(resolved);
  } else if (absl::IsCancelled(resolved.status()) || !(may_be_own || is_known)) {
    return resolved.status();
  } else if (!may_be_own) {
    facts.resolved = {known->second};
  }
  facts.own_addresses = OwnAddresses();
  facts.routable = RoutableAddress().value_or("");
  return ViewHost(facts);
}

absl::StatusOr<HostView> LookAtLocalAddress(const DirectoryContext& context) {
  const std::string& local = context.plan.local_addr;
  if (local.empty()) {
    return HostView();
  }
  absl::StatusOr<HostView> view = LookAtHost(local, context);
  if (absl::IsCancelled(view.status())) {
    return view;
  }
  std::string why(view.status().message());
  if (view.ok()) {
    // Of several addresses, the first that this machine has.
    while (!view->addresses.empty() && !IsOwnAddress(view->addresses.front())) {
      view->addresses.erase(view->addresses.begin());
    }
    if (!view->addresses.empty()) {
      return view;
    }
    why = "no interface of this machine has it";
  }
  WarnOfForeignName(local, why);
  return ViewForeignName(RoutableAddress().value_or(""));
}

absl::Status NameJoiningNode(const DirectoryContext& context, Place* place) {
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context));
  if (local.addresses.empty()) {
    ASSIGN_OR_RETURN(place->node_address, AddressTowardsAny(place->endpoints));
  } else {
    place->node_address = local.addresses.front();
  }
  place->store_address =
      local.addresses.empty() || local.is_hidden ? place->node_address : context.plan.local_addr;
  return absl::OkStatus();
}

}  // namespace fsdprun
