#include "launcher/directory/host_facts.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/directory/host_lookup.h"

namespace fsdprun {
absl::StatusOr<HostView> LookAtHost(const std::string& host, const DirectoryContext& context,
                                    Duration patience) {
  HostFacts facts{.host = host, .own_name = HostName()};
  const bool may_be_own = MayBeOwnName(host, facts.own_name);
  // Nobody else makes the own name known.
  absl::StatusOr<std::vector<std::string>> resolved =
      AwaitHost(host, {may_be_own ? Duration::zero() : patience, context.is_cancelled,
                       context.pass_time, context.notify});
  if (resolved.ok()) {
    facts.resolved = *std::move(resolved);
  } else if (absl::IsCancelled(resolved.status()) || !may_be_own) {
    return resolved.status();
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
  ASSIGN_OR_RETURN(HostView view, LookAtHost(local, context));
  // Of several addresses, the first that this machine has.
  while (!view.addresses.empty() && !IsOwnAddress(view.addresses.front())) {
    view.addresses.erase(view.addresses.begin());
  }
  if (view.addresses.empty()) {
    return absl::UnavailableError(
        absl::StrCat("--local-addr: '", local, "' is not an address of this machine"));
  }
  return view;
}

}  // namespace fsdprun
