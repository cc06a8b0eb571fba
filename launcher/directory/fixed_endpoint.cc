#include "launcher/directory/fixed_endpoint.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"
#include "launcher/directory/host_facts.h"
#include "launcher/directory/listener.h"
#include "launcher/directory/port_conflict.h"
#include "launcher/directory/reach.h"

namespace fsdprun {
namespace {

/// Between two looks at ports of this machine, or of the one machine that was named to this
/// launcher.
constexpr Duration kNearLookPause = std::chrono::milliseconds(500);

constexpr Duration kReachTimeout = std::chrono::milliseconds(900);

/// What launchers have to which none was given: of job after job.
constexpr const char* kDefaultRunId = "none";

constexpr Duration kAskTimeout = std::chrono::seconds(5);

const char* HowToGetAnotherPort(const LaunchPlan& plan) {
  if (plan.is_coordinator) {
    return "end it, or choose another port for --rdzv-endpoint, here and on the nodes. A launcher "
           "on this machine takes the port of a --coordinator that is not there, unless it has "
           "is_host=0 in --rdzv-conf";
  }
  return plan.backend == RendezvousBackend::kStatic
             ? "choose another --master-port"
             : "this node has is_host=true and must listen there: choose another port for the "
               "rendezvous";
}

// The endpoint may be known by an address of something in front of this machine only.
std::string OwnAmong(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (IsOwnAddress(address)) {
      return address;
    }
  }
  return RoutableAddress().value_or(addresses.front());
}

std::vector<NumericEndpoint> AtPort(const HostView& host, uint16_t port) {
  std::vector<NumericEndpoint> endpoints;
  for (const std::string& address : host.addresses) {
    endpoints.push_back({address, port});
  }
  return endpoints;
}

}  // namespace

absl::StatusOr<Place> FixedEndpoint::Find() {
  if (!question_.has_value()) {
    return FindAtEndpoint();
  }
  absl::StatusOr<Place> place = AskHolder(*question_);
  if (!absl::IsAborted(place.status())) {
    question_.reset();
  }
  return place;
}

absl::StatusOr<Place> FixedEndpoint::FindAtEndpoint() {
  const LaunchPlan& plan = context_.plan;
  Place place;
  // The endpoint's machine may start, and its name be published, after this one's.
  const Duration patience = std::exchange(was_asked_, true) ? Duration::zero() : plan.join_timeout;
  ASSIGN_OR_RETURN(const HostView endpoint, LookAtHost(plan.endpoint.host, context_, patience));
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  const bool may_bind =
      role_ == HostRole::kMay && endpoint.is_own && plan.backend == RendezvousBackend::kC10d;
  if (may_bind) {
    place.longest_look_pause = kNearLookPause;
  }
  if (may_bind || !IsNumericAddress(plan.endpoint.host)) {
    place.may_move = Place::MayMove::kUntilAdmitted;
  }
  place.can_be_looked_up = !IsNumericAddress(plan.endpoint.host);
  place.endpoints = AtPort(endpoint, plan.endpoint.port);
  place.tls_name = TlsName();
  ASSIGN_OR_RETURN(place.token, ChooseToken(plan, context_.environment, place.endpoints.front()));
  RETURN_IF_ERROR(HostOrJoin(endpoint, &place));
  if (place.hosts) {
    RETURN_IF_ERROR(place.token.Publish());
  }
  RETURN_IF_ERROR(NameThisNode(endpoint, local, &place));
  may_bind_ = may_bind;
  present_ = place.endpoints;
  told_.clear();
  return place;
}

// The name of an endpoint may be of another machine by now.
absl::StatusOr<Whereabouts> FixedEndpoint::LookAgain() {
  if (!told_.empty()) {
    return absl::UnimplementedError("this launcher was told where to join");
  }
  ASSIGN_OR_RETURN(const HostView endpoint, LookAtHost(context_.plan.endpoint.host, context_));
  present_ = AtPort(endpoint, context_.plan.endpoint.port);
  return Whereabouts{present_, ""};
}

absl::StatusOr<bool> FixedEndpoint::Confirm() {
  return host_ != nullptr ? host_->Confirm() : absl::StatusOr<bool>(true);
}

// Sets the question for Find().
bool FixedEndpoint::HasMoved(const absl::Status& why) {
  question_.reset();
  if (absl::IsNotFound(why)) {
    // A master port is of one job.
    if (context_.plan.is_agent || context_.plan.backend != RendezvousBackend::kStatic) {
      question_ = Question{{}, why};
    }
    return question_.has_value();
  }
  if (told_.empty()) {
    return IsFree() || LeadsElsewhere();
  }
  const Reach reach = ReachAny(present_, MonoNow() + kReachTimeout, context_.is_cancelled);
  if (reach.kind != Reach::Kind::kConnects) {
    question_ = Question{
        reach.kind == Reach::Kind::kRefused ? told_ : std::vector<std::string>(),
        absl::UnavailableError(absl::StrCat("nobody hosts run id '", context_.plan.rdzv_id, "'"))};
  }
  return question_.has_value();
}

// The certificate of an address is for that; of a name, for the name.
std::string FixedEndpoint::TlsName() const {
  const std::string& host = context_.plan.endpoint.host;
  return IsNumericAddress(host) ? std::string() : host;
}

RunIdClient::Security FixedEndpoint::Security() const { return {context_.tls, TlsName()}; }

// Whoever listened at the endpoint is gone, and this launcher can listen there.
bool FixedEndpoint::IsFree() const {
  return may_bind_ && ReachAny(present_, MonoNow() + kReachTimeout, context_.is_cancelled).kind ==
                          Reach::Kind::kRefused;
}

// The name may be of a machine that was started anew with another address, such as a pod.
bool FixedEndpoint::LeadsElsewhere() const {
  if (IsNumericAddress(context_.plan.endpoint.host)) {
    return false;
  }
  const absl::StatusOr<HostView> now = LookAtHost(context_.plan.endpoint.host, context_);
  if (!now.ok()) {
    return false;  // Where to is not known now.
  }
  const std::vector<NumericEndpoint> there = AtPort(*now, context_.plan.endpoint.port);
  return !std::is_permutation(there.begin(), there.end(), present_.begin(), present_.end());
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
  return may_be_a_stranger ? CheckPortHolder(place->endpoints.front(), context_.tls != nullptr)
                           : absl::OkStatus();
}

absl::Status FixedEndpoint::Bind(const HostView& endpoint, Place* place) const {
  absl::StatusOr<std::vector<UniqueFd>> listeners =
      BindListeners(endpoint.listen_on, context_.plan.endpoint.port);
  switch (AfterBinding(role_, listeners.status())) {
    case NextMove::kHost:
      place->hosts = true;
      place->listeners = *std::move(listeners);
      return absl::OkStatus();
    case NextMove::kCheckHolder:
      return CheckPortHolder(place->endpoints.front(), context_.tls != nullptr);
    case NextMove::kNameHolder:
      return WithPortHolder(listeners.status(), context_.plan.endpoint.port,
                            HowToGetAnotherPort(context_.plan));
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

// See Note [Several run ids on one endpoint].
absl::StatusOr<Place> FixedEndpoint::AskHolder(const Question& question) {
  ASSIGN_OR_RETURN(const HostView endpoint, LookAtHost(context_.plan.endpoint.host, context_));
  ASSIGN_OR_RETURN(Place elsewhere, HostElsewhere(endpoint));
  std::vector<NumericEndpoint> holder = AtPort(endpoint, context_.plan.endpoint.port);
  ASSIGN_OR_RETURN(elsewhere.token,
                   ChooseToken(context_.plan, context_.environment, holder.front()));
  if (elsewhere.token.value.empty()) {
    ASSIGN_OR_RETURN(elsewhere.token.value, TokenFile::Read(elsewhere.token.path));
  }
  MoveReachableToFront(&holder, MonoNow() + kReachTimeout, context_.is_cancelled);
  auto call = std::make_unique<RunIdClient>(Security());
  elsewhere.sure_from = MonoNow();
  const absl::StatusOr<RunIdClient::Answer> answer =
      call->Ask(ToString(holder.front()), elsewhere.token.value,
                {.run_id = context_.plan.rdzv_id,
                 .endpoints = elsewhere.targets(),
                 .refused = question.refused,
                 .hosts = false,
                 .claim_lease = ClaimLeaseOf(context_.plan)},
                MonoNow() + kAskTimeout, context_.is_cancelled);
  if (absl::IsUnavailable(answer.status())) {
    return FindAtEndpoint();  // It has gone since.
  }
  RETURN_IF_ERROR(answer.status());
  if (answer->kind == RunIdClient::Kind::kYours) {
    host_ = std::make_unique<RunIdHost>(
        RunIdHost::Options{
            .holder = holder,
            .listen_on = endpoint.is_own ? endpoint.listen_on : std::vector<std::string>(),
            .token = elsewhere.token.value,
            .run_id = context_.plan.rdzv_id,
            .endpoints = elsewhere.targets(),
            .claim_lease = ClaimLeaseOf(context_.plan),
            .security = Security(),
            .is_cancelled = context_.is_cancelled},
        std::move(call));
  }
  call.reset();
  return Follow(*answer, std::move(elsewhere), question.why);
}

absl::StatusOr<Place> FixedEndpoint::HostElsewhere(const HostView& endpoint) const {
  Place place;
  if (role_ == HostRole::kNever) {
    return place;
  }
  const std::vector<std::string> all{"::"};
  ASSIGN_OR_RETURN(place.listeners, BindListeners(endpoint.is_own ? endpoint.listen_on : all, 0));
  ASSIGN_OR_RETURN(const uint16_t port, PortOf(place.listeners.front()));
  place.hosts = true;
  const std::vector<std::string> outside{RoutableAddress().value_or("127.0.0.1")};
  for (const std::string& address : endpoint.is_own ? endpoint.addresses : outside) {
    place.endpoints.push_back({address, port});
  }
  return place;
}

absl::StatusOr<Place> FixedEndpoint::Follow(const RunIdClient::Answer& answer, Place elsewhere,
                                            const absl::Status& why) {
  switch (answer.kind) {
    case RunIdClient::Kind::kHere:
      return FindAtEndpoint();
    case RunIdClient::Kind::kClosed:
      return absl::FailedPreconditionError(absl::StrCat(
          "the job with run id '", context_.plan.rdzv_id, "' is over, as the launcher at ",
          ToString(context_.plan.endpoint), " says; give a new job another --rdzv-id"));
    case RunIdClient::Kind::kWait:
      return absl::AbortedError(absl::StrCat("the launcher at ", ToString(context_.plan.endpoint),
                                             " has just come there"));
    case RunIdClient::Kind::kUnknown:
      return why;
    case RunIdClient::Kind::kThere:
      return answer.endpoints.empty() ? why : JoinAt(answer.endpoints, elsewhere.token);
    case RunIdClient::Kind::kYours:
      break;
  }
  told_.clear();
  elsewhere.can_be_taken = true;
  RETURN_IF_ERROR(NameAtThose(&elsewhere));
  return elsewhere;
}

absl::StatusOr<Place> FixedEndpoint::JoinAt(const std::vector<std::string>& endpoints,
                                            const JobToken& token) {
  Place place;
  place.token.value = token.value;
  place.token.advice = token.advice;
  for (const std::string& text : endpoints) {
    ASSIGN_OR_RETURN(const HostPort there, ParseHostPort(text, 0));
    place.endpoints.push_back({there.host, there.port});
  }
  place.may_move = Place::MayMove::kUntilAdmitted;
  place.longest_look_pause = kNearLookPause;
  RETURN_IF_ERROR(NameAtThose(&place));
  present_ = place.endpoints;
  told_ = endpoints;
  return place;
}

// NameThisNode() for endpoints that no user has named.
absl::Status FixedEndpoint::NameAtThose(Place* place) const {
  ASSIGN_OR_RETURN(const HostView local, LookAtLocalAddress(context_));
  HostView view;
  for (const NumericEndpoint& there : place->endpoints) {
    view.addresses.push_back(there.address);
  }
  view.is_loopback = IsLoopback(view.addresses.front());
  return NameThisNode(view, local, place);
}

Tended FixedEndpoint::Tend() {
  Tended tended = host_ != nullptr ? host_->Tend() : Tended();
  tended.is_over = host_ == nullptr || host_->has_taken_over();
  return tended;
}

absl::StatusOr<Place> FixedEndpoint::PlaceAt(const std::vector<std::string>& other_host,
                                             const JobToken& token) {
  if (other_host.empty()) {
    return absl::InvalidArgumentError("the other host has no address");
  }
  return JoinAt(other_host, token);
}

void FixedEndpoint::CannotListen() {
  if (host_ != nullptr) {
    host_->CannotListen();
  }
}

void FixedEndpoint::JobEnded(bool closes) {
  if (host_ != nullptr) {
    host_->Leave(closes && context_.plan.rdzv_id != kDefaultRunId);
  }
  host_.reset();
}

}  // namespace fsdprun
