#include "launcher/directory/told_coordinator.h"

#include "base/status_macros.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

constexpr Duration kReachTimeout = std::chrono::seconds(2);

}  // namespace

absl::StatusOr<Place> ToldCoordinator::Find() {
  Place place;
  for (const HostPort& told : context_.plan.coordinators) {
    place.endpoints.push_back({told.host, told.port});
  }
  MoveReachableToFront(&place.endpoints, MonoNow() + kReachTimeout, context_.is_cancelled);
  ASSIGN_OR_RETURN(place.token,
                   ChooseToken(context_.plan, context_.environment, place.endpoints.front()));
  RETURN_IF_ERROR(NameJoiningNode(context_, &place));
  return place;
}

}  // namespace fsdprun
