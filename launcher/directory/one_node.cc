#include "launcher/directory/one_node.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/port_conflict.h"

namespace fsdprun {
namespace {

absl::StatusOr<std::vector<UniqueFd>> BindMasterPort(const HostView& master,
                                                     const LaunchPlan& plan) {
  // All other addresses of the machine are of no use to the workers of this node.
  const std::vector<std::string> listen_on =
      master.is_loopback || IsWildcard(master.listen_on.front()) || master.is_hidden
          ? master.listen_on
          : master.addresses;
  absl::StatusOr<std::vector<UniqueFd>> listeners = BindListeners(listen_on, plan.master_port);
  if (!absl::IsAlreadyExists(listeners.status())) {
    return listeners;
  }
  if (plan.master_port_is_explicit) {
    return WithPortHolder(listeners.status(), plan.master_port, "choose another --master-port");
  }
  ASSIGN_OR_RETURN(listeners, BindListeners(listen_on, 0));
  ASSIGN_OR_RETURN(const uint16_t port, PortOf(listeners->front()));
  Log(LogLevel::kWarning, absl::StrCat("MASTER_PORT ", plan.master_port, " is busy, using ", port));
  return listeners;
}

}  // namespace

absl::StatusOr<Place> OneNode::Find() {
  const LaunchPlan& plan = context_.plan;
  Place place{.hosts = true};
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  place.node_address = plan.local_addr.empty() ? "127.0.0.1" : local.addresses.front();
  place.store_address =
      plan.local_addr.empty() || local.is_hidden ? place.node_address : plan.local_addr;
  if (plan.backend != RendezvousBackend::kStatic) {
    return place;
  }
  ASSIGN_OR_RETURN(const HostView master, LookAtHost(plan.master_addr, context_));
  if (!master.is_own) {
    return absl::UnavailableError(
        absl::StrCat("--master-addr: '", plan.master_addr,
                     "' is not an address of this machine, which is the only node of the job; "
                     "leave the option out, or give --nnodes"));
  }
  ASSIGN_OR_RETURN(place.listeners, BindMasterPort(master, plan));
  place.node_address = master.addresses.front();
  place.store_address = master.is_hidden ? place.node_address : plan.master_addr;
  return place;
}

}  // namespace fsdprun
