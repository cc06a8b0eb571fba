#include "launcher/directory/host_facts.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/directory/host_lookup.h"

namespace fsdprun {
namespace {

// The resolver may be slow in a healthy cluster; with a dead name server it needs up to half a
// minute to fail.
constexpr Duration kLookUpTimeout = std::chrono::seconds(5);

}  // namespace

absl::StatusOr<HostView> LookAtHost(const std::string& host, const DirectoryContext& context) {
  HostFacts facts{.host = host, .own_name = HostName()};
  absl::StatusOr<std::vector<std::string>> resolved =
      LookUpHost(host, {MonoNow() + kLookUpTimeout, context.is_cancelled});
  if (resolved.ok()) {
    facts.resolved = *std::move(resolved);
  } else if (absl::IsCancelled(resolved.status()) || !MayBeOwnName(host, facts.own_name)) {
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
