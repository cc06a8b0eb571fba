// Where a launcher takes part in its job, and how that changes: carries out what PlaceSearch
// decides.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// How long a file system or a server that hangs may delay the exit: the end of a job is worth some
/// waiting, because who comes late must find it.
constexpr Duration kLeaveDirectoryTimeout = std::chrono::seconds(10);
constexpr Duration kInterruptedLeaveTimeout = std::chrono::seconds(2);
/// How often a coordinator may turn out to have another run id, or no place for this node: those
/// who listen at an endpoint may follow one another.
constexpr int kMaxTimesFoundAgain = 10;

}  // namespace

void Launcher::StepSearch(place::Event event) {
  for (place::Action& action : search_.Step(std::move(event), PlaceFacts(), MonoNow())) {
    std::visit([this](auto& what) { Execute(what); }, action);
  }
  loop_.Cancel(std::exchange(search_timer_, 0));
  if (search_.wake_at() != MonoTime::max()) {
    search_timer_ = loop_.At(search_.wake_at(), [this] { StepSearch(place::TimerDue{}); });
  }
}

place::Facts Launcher::PlaceFacts() const {
  place::Facts facts;
  if (agent_ == nullptr) {
    return facts;
  }
  facts.hosts = host_ != nullptr;
  facts.is_alone = host_ != nullptr && host_->is_alone();
  facts.has_run = (host_ != nullptr ? host_->machine().generation()
                                    : agent_->machine().generation()) != Generation();
  facts.was_admitted = agent_->was_admitted();
  const absl::Status& error = agent_->last_link_error();
  facts.is_answered = place_.may_move == Place::MayMove::kUntilFirstWorld
                          ? agent_->was_admitted() && error.ok()
                          : !absl::IsUnavailable(error);
  facts.awaits_successor = host_ == nullptr && agent_->machine().awaits_successor();
  facts.awaits_check = host_ != nullptr && host_->machine().awaits_place();
  return facts;
}

place::AgentEnd Launcher::EndOfAgent() const {
  if (host_ != nullptr || own_signal_ != 0 || agent_->machine().generation() != Generation()) {
    return place::AgentEnd::kOver;
  }
  if (!agent_->was_admitted() && absl::IsNotFound(agent_->last_link_error())) {
    return place::AgentEnd::kOtherRunId;
  }
  if (place_.may_move != Place::MayMove::kUntilFirstWorld) {
    return place::AgentEnd::kOver;
  }
  if (agent_->has_lost_coordinator()) {
    return place::AgentEnd::kHostSilent;
  }
  return was_turned_away_ ? place::AgentEnd::kTurnedAway : place::AgentEnd::kOver;
}

// The agent has ended, but may take part elsewhere.
bool Launcher::LooksElsewhere() {
  place::AgentEnd end = EndOfAgent();
  if (end != place::AgentEnd::kOver && end != place::AgentEnd::kHostSilent &&
      times_found_again_++ >= kMaxTimesFoundAgain) {
    end = place::AgentEnd::kOver;
  }
  StepSearch(place::AgentEnded{end});
  return end != place::AgentEnd::kOver;
}

// Its methods may block, so none is called on the loop. What it says at the end is of no use.
void Launcher::OnDirectory(FileThread::Closure task, FileThread::Closure then) {
  directory_thread_.Run(std::move(task), [this, then = std::move(then)]() mutable {
    if (!is_leaving_) {
      then();
    }
  });
}

// --- Questions

void Launcher::Execute(const place::Ask&) {
  const auto answer = std::make_shared<place::Asked>(place::Asked{absl::UnknownError(""), {}});
  const absl::Status& why = agent_->last_link_error();
  OnDirectory(
      [directory = directory_, hosts = host_ != nullptr, why, answer] {
        answer->at = MonoNow();
        if (!hosts) {
          answer->has_moved = directory->HasMoved(why);
          return;
        }
        const absl::StatusOr<bool> is_own = directory->Confirm();
        answer->has_moved = is_own.ok() ? absl::StatusOr<bool>(!*is_own) : is_own.status();
      },
      [this, answer] { StepSearch(*answer); });
}

void Launcher::Execute(const place::Find&) {
  const auto place = std::make_shared<absl::StatusOr<Place>>(absl::UnknownError("not asked"));
  OnDirectory([directory = directory_, place] { *place = directory->Find(); },
              [this, place] { OnFound(std::move(*place)); });
}

void Launcher::Execute(const place::FindAt& find) {
  SharedEndpoint* shared = directory_->shared_endpoint();
  if (shared == nullptr) {
    OnFound(absl::UnimplementedError("no other job can be at this endpoint"));
    return;
  }
  const auto place = std::make_shared<absl::StatusOr<Place>>(absl::UnknownError("not asked"));
  OnDirectory(
      [directory = directory_, shared, where = find.where, place,
       token = JobToken{.value = place_.token.value, .advice = place_.token.advice}] {
        *place = shared->PlaceAt(where, token);
      },
      [this, place] { OnFound(std::move(*place)); });
}

void Launcher::OnFound(absl::StatusOr<Place> place) {
  const bool is_present = place.ok() && IsPresent(*place);
  StepSearch(place::Found{std::move(place), is_present});
}

bool Launcher::IsPresent(const Place& place) const {
  return !place.hosts && host_ == nullptr && place.token.value == place_.token.value &&
         std::is_permutation(place.endpoints.begin(), place.endpoints.end(),
                             place_.endpoints.begin(), place_.endpoints.end());
}

void Launcher::Execute(const place::LookAgain&) {
  const auto where = std::make_shared<absl::StatusOr<Whereabouts>>(absl::UnknownError("not asked"));
  OnDirectory([directory = directory_, where] { *where = directory->LookAgain(); },
              [this, where] { OnFoundAgain(std::move(*where)); });
}

void Launcher::OnFoundAgain(absl::StatusOr<Whereabouts> where) {
  const bool is_present = where.ok() &&
                          (where->token.empty() || where->token == place_.token.value) &&
                          std::is_permutation(where->endpoints.begin(), where->endpoints.end(),
                                              place_.endpoints.begin(), place_.endpoints.end());
  StepSearch(place::FoundAgain{std::move(where), is_present});
}

// --- What follows

// The token is read before each attempt.
void Launcher::Execute(place::Redirect& redirect) {
  place_.endpoints = std::move(redirect.where.endpoints);
  if (!redirect.where.token.empty()) {
    place_.token.value = redirect.where.token;
  }
  Log(LogLevel::kInfo, absl::StrCat("another coordinator takes the job over at ", place_.where(),
                                    "; the workers of this node go on"));
  agent_->CoordinatorMoved(place_.where());
  grpc_link_->Redirect(place_.targets());
}

void Launcher::Execute(place::MoveTo& move) {
  if (!move.other_host.empty()) {
    Log(LogLevel::kInfo,
        absl::StrCat("the job with run id '", run_id_, "' is hosted at ",
                     absl::StrJoin(move.other_host, ", "), " already; joining it there"));
  } else if (host_ != nullptr) {
    Print(absl::StrCat("another launcher has taken run id '", run_id_, "' meanwhile; joining it"));
  } else if (was_turned_away_) {
    Print(absl::StrCat(agent_message_, "; looking for the coordinator again"));
  } else if (!absl::IsNotFound(agent_->last_link_error())) {
    Print(absl::StrCat("nobody answers any more at ", place_.where(),
                       "; looking for the coordinator again"));
  }
  MoveTo(std::move(move.place));
}

void Launcher::MoveTo(Place place) {
  agent_exit_.reset();
  output_.Attach(nullptr);
  agent_.reset();
  standby_.reset();
  if (host_ != nullptr) {
    host_->Shutdown();
  }
  store_.reset();
  // Kept until the next one is open: gRPC does not end and begin anew in between, which it does not
  // bear while a connection is being made.
  const std::unique_ptr<CoordinatorHost> host_before = std::move(host_);
  const std::unique_ptr<GrpcLink> link_before = std::move(grpc_link_);
  place_ = std::move(place);
  absl::Status status = OpenLink();
  if (status.ok()) {
    status = MakeStore();
  }
  if (!status.ok()) {
    agent_message_ = std::string(status.message());
    agent_exit_ = 1;
    loop_.Stop();
    return;
  }
  MakeAgent();
  agent_->Start();
}

void Launcher::Execute(const place::GiveUpClaim&) {
  OnDirectory(GivingUp(false), [] {});
}

void Launcher::Execute(const place::Confirmed& confirmed) { host_->PlaceChecked(confirmed.at); }

void Launcher::Execute(const place::Unknown& unknown) {
  Log(LogLevel::kWarning,
      absl::StrCat("cannot make sure that no other launcher has taken run id '", run_id_,
                   "' meanwhile: ", unknown.why,
                   "; no workers are started before that is known, and it is tried again"));
  host_->PlaceUnknown(unknown.why);
}

void Launcher::Execute(const place::Suspend&) {
  host_->PlaceUnknown("another one has, and is being looked for");
}

// The job here ends: its workers have run, and whoever has taken the run id counts from the start.
void Launcher::Execute(const place::Replaced& replaced) {
  if (!replaced.is_told) {
    Log(LogLevel::kWarning,
        absl::StrCat("another launcher has taken run id '", run_id_,
                     "' meanwhile; workers that run here go on, but none are started any more"));
  }
  host_->Replaced(absl::StrCat(
      "this launcher hosted run id '", run_id_, "' and was silent for ",
      ToSeconds(clocks_.claim_lease),
      " s, or could not renew its claim: another launcher has taken the run id meanwhile; start "
      "this node again to join it there, or give this job another --rdzv-id"));
}

void Launcher::Execute(const place::End& end) {
  if (!end.why.ok() && end.why != agent_->last_link_error()) {
    agent_message_ = std::string(end.why.message());
  }
  agent_exit_ = agent_exit_.value_or(1);
  loop_.Stop();
}

// --- The end

// What a signal has cut short is over: this is not to be.
FileThread::Closure Launcher::GivingUp(bool closes) const {
  return [directory = directory_, closes, is_over = is_search_over_] {
    *is_over = false;
    directory->JobEnded(closes);
  };
}

void Launcher::LeaveDirectory() {
  *is_search_over_ = true;
  is_leaving_ = true;
  StepSearch(place::Leave{});
  const bool hosts = place_.hosts && place_.is_shared();
  // Or a search that is cut short has just made this launcher a host.
  if (!hosts && !search_.may_hold_claim()) {
    return;
  }
  // Of a place that could not be looked up it is not known whose it is.
  const bool is_unknown = host_ != nullptr && host_->machine().ended_at_unknown_place();
  const bool closes =
      outcome_.has_value() && outcome_->kind != OutcomeKind::kStoppedBySignal && !is_unknown;
  auto has_left = std::make_shared<bool>(false);
  directory_thread_.Run(GivingUp(closes), [has_left] { *has_left = true; });
  const Duration limit = closes ? kLeaveDirectoryTimeout : kInterruptedLeaveTimeout;
  const MonoTime deadline = MonoNow() + limit;
  while (!*has_left && directory_thread_.Await(deadline)) {
  }
  if (!*has_left && hosts && !is_unknown) {
    Log(LogLevel::kWarning,
        absl::StrCat("could not mark run id '", run_id_, "' as ", closes ? "over" : "free", " at ",
                     plan_.uses_file ? plan_.rendezvous_file : ToString(plan_.endpoint), " within ",
                     ToSeconds(limit),
                     " s: its file system or server does not answer; give the "
                     "next job another --rdzv-id"));
  }
}

}  // namespace fsdprun
