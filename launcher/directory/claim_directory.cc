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
    : context_(std::move(context)),
      is_host_(context_.plan.backend == RendezvousBackend::kEtcd ? context_.plan.is_host
                                                                 : std::nullopt),
      store_(std::move(store)),
      silence_(kLongestSilenceStep) {}

absl::StatusOr<Place> ClaimDirectory::Find() {
  JobEnded(false);  // Of a claim whose place another has taken, only the renewal is left.
  const LaunchPlan& plan = context_.plan;
  const Duration timeout = std::min<Duration>(
      plan.read_timeout.has_value() ? Duration(*plan.read_timeout) : kClaimTimeout,
      plan.join_timeout);
  // A host may be started later.
  const Duration wait = is_host_ == false ? Duration(plan.join_timeout) : timeout;
  const MonoTime begun = MonoNow();
  MonoTime answered = begun;
  for (bool is_first = true;; is_first = false) {
    absl::StatusOr<std::optional<Place>> place = Try();
    // Before anything that was found: of a look that was cut short a holder seems to be silent, and
    // a call to seem to have failed.
    if (!mine_.has_value() && context_.is_cancelled && context_.is_cancelled()) {
      return absl::CancelledError("interrupted while looking for the coordinator");
    }
    if (place.ok() && place->has_value()) {
      return *std::move(*place);
    }
    const MonoTime now = MonoNow();
    answered = place.ok() ? now : answered;
    if (!place.ok() && (!absl::IsUnavailable(place.status()) || now >= answered + timeout)) {
      return place.status();
    }
    if (now >= begun + wait) {
      return WhyNothingWasFound(wait);
    }
    if (is_first && place.ok() && is_host_ == false && context_.notify) {
      context_.notify(absl::StrCat("waiting for a host of run id '", plan.rdzv_id,
                                   "': nobody is named in ", store_->Where(),
                                   ", and this launcher may not host (is_host=0)"));
    }
    // Nothing tells of a change.
    ::poll(nullptr, 0, kPause.count());
  }
}

absl::Status ClaimDirectory::WhyNothingWasFound(Duration timeout) const {
  return absl::UnavailableError(
      is_host_ == false
          ? absl::StrCat("nobody hosts run id '", context_.plan.rdzv_id, "', as ", store_->Where(),
                         " says, and this launcher may not (is_host=0); waited ",
                         ToSeconds(timeout), " s. Start the job's coordinator")
          : absl::StrCat("could not claim ", store_->Where(), " within ", ToSeconds(timeout),
                         " s: other launchers are at it all the time"));
}

// Its place has another launch as soon as another coordinator has it.
absl::StatusOr<Whereabouts> ClaimDirectory::LookAgain() {
  ASSIGN_OR_RETURN(const std::optional<Claim> found, store_->Read());
  if (!found.has_value() || found->closed_until.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("nobody hosts the job, as ", store_->Where(), " says"));
  }
  joined_ = found->launch;
  return Whereabouts{EndpointsOf(*found), found->token};
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
  facts.is_succeeded = context_.succession.has_value()
                           ? found->launch == context_.succession->claim
                           : !context_.journal.empty() && found->journal == context_.journal;
  if (facts.is_succeeded) {
    return facts;  // Whether it answers does not matter any more.
  }
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
      if (is_host_ == true || context_.succession.has_value()) {
        return RefuseToHostBeside(*found);
      }
      ASSIGN_OR_RETURN(Place place, PlaceOf(*found));
      joined_ = found->launch;
      return std::optional<Place>(std::move(place));
    }
    case ClaimMove::kClaim:
      break;
  }
  return is_host_ == false ? std::optional<Place>() : Host(found);
}

absl::Status ClaimDirectory::RefuseToHostBeside(const Claim& claim) const {
  return absl::AlreadyExistsError(absl::StrCat(
      "another launcher hosts run id '", context_.plan.rdzv_id, "', at ",
      ToString(claim.endpoints.front()), " (as ", store_->Where(),
      " says); end it, or give this job another --rdzv-id. A launcher takes the place of a "
      "--coordinator that is not there, unless it has is_host=0 in --rdzv-conf"));
}

absl::StatusOr<std::optional<Place>> ClaimDirectory::Host(const std::optional<Claim>& found) {
  ASSIGN_OR_RETURN(Place place, MakeHostPlace());
  place.sure_from = MonoNow();
  Claim mine{.launch = RandomHex(8),
             .endpoints = place.endpoints,
             .lease_seconds = ClaimLeaseOf(context_.plan).count(),
             .network = OwnNetwork(),
             .journal = context_.journal};
  if (place.token.value.empty()) {
    mine.token = place.token.value =
        context_.succession.has_value() ? context_.succession->token : RandomHex(32);
  }
  place.claim = mine.launch;
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

std::vector<NumericEndpoint> ClaimDirectory::EndpointsOf(const Claim& claim) const {
  std::vector<NumericEndpoint> endpoints = EndpointsOfHolder(claim, OwnNetwork(), OwnAddresses());
  if (endpoints.empty()) {
    endpoints = claim.endpoints;
  }
  MoveReachableToFront(&endpoints, MonoNow() + kHolderTimeout, context_.is_cancelled);
  return endpoints;
}

absl::StatusOr<Place> ClaimDirectory::PlaceOf(const Claim& claim) const {
  Place place;
  place.may_move = Place::MayMove::kUntilFirstWorld;
  place.can_be_looked_up = true;
  place.source = store_->Where();
  place.endpoints = EndpointsOf(claim);
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
