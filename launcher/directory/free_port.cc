#include "launcher/directory/free_port.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/listener.h"

namespace fsdprun {
namespace {

// All that other nodes may reach this one at, the likeliest first.
std::vector<std::string> AddressesForOthers(const std::string& best) {
  std::vector<std::string> addresses{best};
  for (const std::string& own : OwnAddresses()) {
    const bool is_of_use = !IsLoopback(own) && !absl::StartsWith(own, "fe80:");
    if (is_of_use && std::find(addresses.begin(), addresses.end(), own) == addresses.end()) {
      addresses.push_back(own);
    }
  }
  return addresses;
}

}  // namespace

absl::StatusOr<Place> HostOnFreePort(const DirectoryContext& context) {
  Place place;
  place.hosts = true;
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context));
  place.node_address =
      local.addresses.empty() ? RoutableAddress().value_or("127.0.0.1") : local.addresses.front();
  place.store_address =
      local.addresses.empty() || local.is_hidden ? place.node_address : context.plan.local_addr;
  ASSIGN_OR_RETURN(place.listeners, BindListeners({"::"}, 0));
  ASSIGN_OR_RETURN(const uint16_t port, PortOf(place.listeners.front()));
  for (const std::string& address : AddressesForOthers(place.node_address)) {
    place.endpoints.push_back({address, port});
  }
  return place;
}

}  // namespace fsdprun
