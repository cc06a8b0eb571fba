#include "launcher/directory/claim_directory.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/free_port.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

constexpr Duration kClaimTimeout = std::chrono::seconds(60);
constexpr Duration kHolderTimeout = std::chrono::seconds(2);
constexpr std::chrono::duration<int, std::milli> kPause(50);
// Between two looks there are a pause and attempts to reach the holder.
constexpr Duration kLongestSilenceStep = std::chrono::seconds(7);

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

ClaimDirectory::ClaimDirectory(DirectoryContext context, std::unique_ptr<ClaimStore> store)
    : context_(std::move(context)), store_(std::move(store)), silence_(kLongestSilenceStep) {}

absl::StatusOr<Place> ClaimDirectory::Find() {
  JobEnded(false);  // Of a claim whose place another has taken, only the renewal is left.
  const Duration timeout = context_.plan.read_timeout.has_value()
                               ? Duration(*context_.plan.read_timeout)
                               : kClaimTimeout;
  const MonoTime deadline = MonoNow() + std::min<Duration>(timeout, context_.plan.join_timeout);
  for (;;) {
    absl::StatusOr<std::optional<Place>> place = Try();
    // Before anything that was found: of a look that was cut short a holder seems to be silent, and
    // a call to seem to have failed.
    if (!mine_.has_value() && context_.is_cancelled && context_.is_cancelled()) {
      return absl::CancelledError("interrupted while looking for the coordinator");
    }
    if (place.ok() && place->has_value()) {
      return *std::move(*place);
    }
    if (!place.ok() && (!absl::IsUnavailable(place.status()) || MonoNow() >= deadline)) {
      return place.status();
    }
    if (MonoNow() >= deadline) {
      return absl::UnavailableError(absl::StrCat("could not claim ", store_->Where(), " within ",
                                                 ToSeconds(timeout),
                                                 " s: other launchers are at it all the time"));
    }
    // Nothing tells of a change.
    ::poll(nullptr, 0, kPause.count());
  }
}

bool ClaimDirectory::HasMoved(const absl::Status& /*why*/) {
  const absl::StatusOr<std::optional<Claim>> found = store_->Read();
  if (!found.ok()) {
    return false;
  }
  const bool is_there = found->has_value() && (*found)->launch == joined_ &&
                        MoveOf(*found, LookAtHolder(*found), UnixSeconds()) == ClaimMove::kJoin;
  return !is_there;
}

absl::StatusOr<bool> ClaimDirectory::Confirm() {
  return mine_.has_value() ? store_->Confirm(*mine_) : absl::StatusOr<bool>(false);
}

HolderFacts ClaimDirectory::LookAtHolder(const std::optional<Claim>& found) {
  HolderFacts facts;
  if (!found.has_value() || found->closed_until.has_value()) {
    return facts;
  }
  if (const std::optional<std::string> sign = store_->RenewalSign()) {
    facts.silence = silence_.See(*sign, MonoNow());
  }
  const std::string network = OwnNetwork();
  facts.is_on_own_network = !network.empty() && found->network == network;
  const std::vector<NumericEndpoint> endpoints = EndpointsOfHolder(*found, network, OwnAddresses());
  facts.reach = endpoints.empty()
                    ? Reach::Kind::kSilent
                    : ReachAny(endpoints, MonoNow() + kHolderTimeout, context_.is_cancelled).kind;
  return facts;
}

absl::StatusOr<std::optional<Place>> ClaimDirectory::Try() {
  ASSIGN_OR_RETURN(const std::optional<Claim> found, store_->Read());
  const HolderFacts holder = LookAtHolder(found);
  switch (MoveOf(found, holder, UnixSeconds())) {
    case ClaimMove::kRefuse:
      return absl::FailedPreconditionError(
          absl::StrCat("the job with run id '", context_.plan.rdzv_id, "' is over, as ",
                       store_->Where(), " says; give a new job another --rdzv-id"));
    case ClaimMove::kJoin: {
      ASSIGN_OR_RETURN(Place place, PlaceOf(*found));
      joined_ = found->launch;
      return std::optional<Place>(std::move(place));
    }
    case ClaimMove::kClaim:
      break;
  }
  return Host(found);
}

absl::StatusOr<std::optional<Place>> ClaimDirectory::Host(const std::optional<Claim>& found) {
  ASSIGN_OR_RETURN(Place place, MakeHostPlace());
  place.sure_from = MonoNow();
  Claim mine{.launch = RandomHex(8),
             .endpoints = place.endpoints,
             .lease_seconds = ClaimLeaseOf(context_.plan).count(),
             .network = OwnNetwork()};
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
  ASSIGN_OR_RETURN(Place place, HostOnFreePort(context_));
  place.may_move = Place::MayMove::kUntilFirstWorld;
  place.can_be_taken = true;
  ASSIGN_OR_RETURN(place.token.value, TokenOf(context_.plan, context_.environment));
  return place;
}

absl::StatusOr<Place> ClaimDirectory::PlaceOf(const Claim& claim) const {
  Place place;
  place.may_move = Place::MayMove::kUntilFirstWorld;
  place.source = store_->Where();
  place.endpoints = EndpointsOfHolder(claim, OwnNetwork(), OwnAddresses());
  if (place.endpoints.empty()) {
    place.endpoints = claim.endpoints;
  }
  MoveReachableToFront(&place.endpoints, MonoNow() + kHolderTimeout, context_.is_cancelled);
  ASSIGN_OR_RETURN(place.token.value, TokenOf(context_.plan, context_.environment));
  place.token.advice =
      "set FSDPRUN_TOKEN (or --token-file) to the same value on all nodes, or on none";
  if (place.token.value.empty()) {
    place.token.value = claim.token;
  }
  RETURN_IF_ERROR(NameJoiningNode(context_, &place));
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
