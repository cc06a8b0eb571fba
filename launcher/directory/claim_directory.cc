#include "launcher/directory/claim_directory.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(60);
constexpr Duration kHolderTimeout = std::chrono::seconds(2);
constexpr int kPauseMs = 50;

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

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

absl::StatusOr<Place> ClaimDirectory::Find() {
  const Duration timeout = context_.plan.read_timeout.has_value()
                               ? Duration(*context_.plan.read_timeout)
                               : kClaimTimeout;
  const MonoTime deadline = MonoNow() + std::min<Duration>(timeout, context_.plan.join_timeout);
  for (;;) {
    absl::StatusOr<std::optional<Place>> place = Try();
    if (place.ok() && place->has_value()) {
      return *std::move(*place);
    }
    if (!place.ok() && (!absl::IsUnavailable(place.status()) || MonoNow() >= deadline)) {
      return place.status();
    }
    if (context_.is_cancelled && context_.is_cancelled()) {
      return absl::CancelledError("interrupted while looking for the coordinator");
    }
    if (MonoNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("could not claim ", store_->Where(), " within ",
                                                 ToSeconds(timeout),
                                                 " s: other launchers are at it all the time"));
    }
    // Nothing tells of a change.
    ::poll(nullptr, 0, kPauseMs);
  }
}

absl::StatusOr<std::optional<Place>> ClaimDirectory::Try() {
  ASSIGN_OR_RETURN(const std::optional<Claim> found, store_->Read());
  std::optional<Reach::Kind> reach;
  if (found.has_value() && !found->closed_until.has_value()) {
    reach = ReachAny(found->endpoints, MonoNow() + kHolderTimeout, context_.is_cancelled).kind;
  }
  switch (MoveOf(found, reach, UnixSeconds())) {
    case ClaimMove::kRefuse:
      return absl::FailedPreconditionError(
          absl::StrCat("the job with run id '", context_.plan.rdzv_id, "' is over, as ",
                       store_->Where(), " says; give a new job another --rdzv-id"));
    case ClaimMove::kJoin: {
      ASSIGN_OR_RETURN(Place place, Join(*found));
      return std::optional<Place>(std::move(place));
    }
    case ClaimMove::kClaim:
      break;
  }
  return Host(found);
}

absl::StatusOr<std::optional<Place>> ClaimDirectory::Host(const std::optional<Claim>& found) {
  ASSIGN_OR_RETURN(Place place, MakeHostPlace());
  Claim mine{.launch = RandomHex(8), .endpoints = place.endpoints};
  if (place.token.value.empty()) {
    mine.token = place.token.value = RandomHex(32);
  }
  ASSIGN_OR_RETURN(const bool is_ours, store_->Replace(found, mine));
  if (!is_ours) {
    return std::optional<Place>();
  }
  mine_ = std::move(mine);
  return std::optional<Place>(std::move(place));
}

absl::StatusOr<Place> ClaimDirectory::MakeHostPlace() const {
  Place place;
  place.hosts = true;
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  place.node_address =
      local.addresses.empty() ? RoutableAddress().value_or("127.0.0.1") : local.addresses.front();
  place.store_address =
      local.addresses.empty() || local.is_hidden ? place.node_address : context_.plan.local_addr;
  ASSIGN_OR_RETURN(place.listeners, BindListeners({"::"}, 0));
  ASSIGN_OR_RETURN(const uint16_t port, PortOf(place.listeners.front()));
  for (const std::string& address : AddressesForOthers(place.node_address)) {
    place.endpoints.push_back({address, port});
  }
  ASSIGN_OR_RETURN(place.token.value, GivenToken(context_.environment, context_.plan.token_file));
  return place;
}

absl::StatusOr<Place> ClaimDirectory::Join(const Claim& claim) const {
  Place place;
  place.endpoints = claim.endpoints;
  MoveReachableToFront(&place.endpoints, MonoNow() + kHolderTimeout, context_.is_cancelled);
  ASSIGN_OR_RETURN(place.token.value, GivenToken(context_.environment, context_.plan.token_file));
  place.token.advice =
      "set FSDPRUN_TOKEN (or --token-file) to the same value on all nodes, or on none";
  if (place.token.value.empty()) {
    place.token.value = claim.token;
  }
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  if (local.addresses.empty()) {
    ASSIGN_OR_RETURN(place.node_address, AddressTowardsAny(place.endpoints));
  } else {
    place.node_address = local.addresses.front();
  }
  place.store_address =
      local.addresses.empty() || local.is_hidden ? place.node_address : context_.plan.local_addr;
  return place;
}

void ClaimDirectory::JobEnded(bool closes) {
  if (!mine_.has_value()) {
    return;
  }
  std::optional<Claim> last;
  if (closes && IsClosable(context_.plan.rdzv_id)) {
    last = Claim{.launch = mine_->launch, .closed_until = UnixSeconds() + kClosedSeconds};
  }
  if (const absl::Status status = store_->Release(*mine_, last); !status.ok()) {
    Log(LogLevel::kWarning, std::string(status.message()));
  }
  mine_.reset();
}

}  // namespace fsdprun
