#include "launcher/directory/fixed_endpoint.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/port_conflict.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

constexpr Duration kReachTimeout = std::chrono::milliseconds(900);

// The endpoint may be known by an address of something in front of this machine only.
std::string OwnAmong(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (IsOwnAddress(address)) {
      return address;
    }
  }
  return RoutableAddress().value_or(addresses.front());
}

}  // namespace

absl::StatusOr<Place> FixedEndpoint::Find() {
  const LaunchPlan& plan = context_.plan;
  Place place;
  ASSIGN_OR_RETURN(const HostView endpoint, LookAtHost(plan.endpoint.host, context_));
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  for (const std::string& address : endpoint.addresses) {
    place.endpoints.push_back({address, plan.endpoint.port});
  }
  ASSIGN_OR_RETURN(place.token, ChooseToken(plan, context_.environment, place.endpoints.front()));
  RETURN_IF_ERROR(HostOrJoin(endpoint, &place));
  if (place.hosts) {
    RETURN_IF_ERROR(place.token.Publish());
  }
  RETURN_IF_ERROR(NameThisNode(endpoint, local, &place));
  return place;
}

absl::Status FixedEndpoint::HostOrJoin(const HostView& endpoint, Place* place) const {
  switch (FirstMoveOf(role_, context_.plan.backend, endpoint.is_own)) {
    case FirstMove::kRefuse:
      return absl::UnavailableError(
          absl::StrCat("this is node rank 0, but ", endpoint.addresses.front(),
                       " is not an address of this machine; give --master-addr an address of "
                       "node 0, or this node another --node-rank"));
    case FirstMove::kBind:
      return Bind(endpoint, place);
    case FirstMove::kJoin:
      break;
  }
  const bool may_be_a_stranger = endpoint.is_own && !context_.plan.is_agent;
  return may_be_a_stranger ? CheckPortHolder(place->endpoints.front()) : absl::OkStatus();
}

absl::Status FixedEndpoint::Bind(const HostView& endpoint, Place* place) const {
  const bool is_static = context_.plan.backend == RendezvousBackend::kStatic;
  absl::StatusOr<std::vector<UniqueFd>> listeners =
      BindListeners(endpoint.listen_on, context_.plan.endpoint.port);
  switch (AfterBinding(role_, listeners.status())) {
    case NextMove::kHost:
      place->hosts = true;
      place->listeners = *std::move(listeners);
      return absl::OkStatus();
    case NextMove::kCheckHolder:
      return CheckPortHolder(place->endpoints.front());
    case NextMove::kNameHolder:
      return WithPortHolder(listeners.status(), context_.plan.endpoint.port,
                            is_static ? "choose another --master-port"
                                      : "this node has is_host=true and must listen there: choose "
                                        "another port for the rendezvous");
    case NextMove::kFail:
      break;
  }
  return listeners.status();
}

absl::Status FixedEndpoint::NameThisNode(const HostView& endpoint, const HostView& local,
                                         Place* place) const {
  std::string host_address;
  if (place->hosts) {
    host_address = place->node_address = OwnAmong(endpoint.addresses);
  } else {
    // Whatever answers first is also where this node's address is known.
    MoveReachableToFront(&place->endpoints, MonoNow() + kReachTimeout, context_.is_cancelled);
    if (local.addresses.empty()) {
      ASSIGN_OR_RETURN(place->node_address, AddressTowardsAny(place->endpoints));
    }
  }
  if (!local.addresses.empty()) {
    place->node_address = local.addresses.front();
  }
  place->store_address = StoreAddress(context_.plan, {.hosts = place->hosts,
                                                      .endpoint = endpoint,
                                                      .host_address = host_address,
                                                      .local = local,
                                                      .node_address = place->node_address});
  return absl::OkStatus();
}

}  // namespace fsdprun
