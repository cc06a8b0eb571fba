// Where a launcher takes part in its job, and how that changes.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// After how long a launcher that has met nobody yet looks whether it waits at the right place;
/// later less often, see Place.
constexpr Duration kFirstLookPause = std::chrono::seconds(1);
/// Between two questions that nobody can answer yet.
constexpr Duration kAskAgainPause = std::chrono::milliseconds(100);
/// How long a file system or a server that hangs may delay the exit: the end of a job is worth some
/// waiting, because who comes late must find it.
constexpr Duration kLeaveDirectoryTimeout = std::chrono::seconds(10);
constexpr Duration kInterruptedLeaveTimeout = std::chrono::seconds(2);

}  // namespace

void Launcher::MoveTo(Place place) {
  needs_place_ = false;
  must_find_ = false;
  agent_exit_.reset();
  output_.Attach(nullptr);
  agent_.reset();
  if (host_ != nullptr) {
    host_->Shutdown();
  }
  store_.reset();
  // Kept until the next one is open: gRPC does not end and begin anew in between, which it does not
  // bear while a connection is being made.
  const std::unique_ptr<CoordinatorHost> host_before = std::move(host_);
  const std::unique_ptr<GrpcLink> link_before = std::move(grpc_link_);
  place_ = std::move(place);
  FSDPRUN_CHECK(OpenLink().ok(), "gRPC was there for the first link");
  MakeStore();
  MakeAgent();
  agent_->Start();
}

// Whoever waits for a launcher that is gone, or hosts what another has taken, has not run anything.
bool Launcher::MayMove() const {
  if (own_signal_ != 0 || needs_place_) {
    return own_signal_ == 0;
  }
  if (agent_exit_.has_value() || place_.may_move == Place::MayMove::kNever) {
    return false;
  }
  if (place_.may_move == Place::MayMove::kUntilAdmitted) {
    return host_ == nullptr && !agent_->was_admitted();
  }
  const Generation generation =
      host_ != nullptr ? host_->machine().generation() : agent_->machine().generation();
  return generation == Generation();
}

// The coordinator admitted this node, fell silent before the first world, and was waited for.
bool Launcher::HasLostHostBeforeTheJob() const {
  return host_ == nullptr && place_.may_move == Place::MayMove::kUntilFirstWorld &&
         own_signal_ == 0 && agent_->has_lost_coordinator() &&
         agent_->machine().generation() == Generation();
}

// A host whose claim is another's by now forms no world: there may be one there already.
bool Launcher::MustLook() const {
  if (MayMove()) {
    return true;
  }
  if (place_.may_move != Place::MayMove::kUntilFirstWorld || host_ == nullptr ||
      outcome_.has_value() || own_signal_ != 0) {
    return false;
  }
  const JobMachine& job = host_->machine();
  return !job.outcome().has_value() && (has_stalled_ || job.phase() == job::Phase::kRendezvous);
}

// By the coordinator at this place.
bool Launcher::IsAnswered() const {
  const absl::Status& error = agent_->last_link_error();
  return place_.may_move == Place::MayMove::kUntilFirstWorld ? agent_->was_admitted() && error.ok()
                                                             : !absl::IsUnavailable(error);
}

void Launcher::BeginToLook() {
  look_pause_ = std::min(kFirstLookPause, place_.longest_look_pause);
  ScheduleLook();
}

void Launcher::ScheduleLook() {
  loop_.Cancel(std::exchange(look_timer_, 0));
  if (!MustLook() || is_looking_) {
    return;  // Or when this look is over.
  }
  look_timer_ = loop_.At(MonoNow() + look_pause_, [this] { Look(); });
  look_pause_ =
      host_ != nullptr ? kFirstLookPause : std::min(look_pause_ * 2, place_.longest_look_pause);
}

// Who waits for a host gives it up after the grace. The other nodes have a new lease after a stall;
// a world of this node alone is not held up until the look is over.
void Launcher::OnStall(Duration length) {
  if (length < clocks_.coordinator_grace) {
    return;
  }
  has_stalled_ = true;
  look_pause_ = Duration::zero();
  ScheduleLook();
}

// Its methods may block, so none is called on the loop. What it says at the end is of no use.
void Launcher::OnDirectory(FileThread::Closure task, FileThread::Closure then) {
  directory_thread_.Run(std::move(task), [this, then = std::move(then)]() mutable {
    if (!is_leaving_) {
      then();
    }
  });
}

// The agent here has ended, and nothing but another place is of use.
void Launcher::NeedPlace() {
  needs_place_ = true;
  if (!is_looking_) {
    loop_.Post([this] { Ask(); });
    is_looking_ = true;
  }
}

void Launcher::Look() {
  look_timer_ = 0;
  if (!MustLook()) {
    return;
  }
  if (host_ == nullptr && IsAnswered()) {
    ScheduleLook();
    return;
  }
  Ask();
}

void Launcher::Ask() {
  is_looking_ = true;
  const auto has_moved = std::make_shared<bool>(std::exchange(must_find_, false));
  const bool is_after_stall = std::exchange(has_stalled_, false);
  const absl::Status& why = agent_->last_link_error();
  OnDirectory([directory = directory_, why, has_moved] { *has_moved |= directory->HasMoved(why); },
              [this, has_moved, is_after_stall, was_needed = needs_place_] {
                OnLook(*has_moved, is_after_stall, was_needed);
              });
}

void Launcher::OnLook(bool has_moved, bool is_after_stall, bool was_needed) {
  is_looking_ = false;
  if (has_moved && MayMove()) {
    Find();
  } else if (has_moved && host_ != nullptr && (is_after_stall || MustLook())) {
    GiveWay();
  } else {
    OnNotFound(needs_place_ ? agent_->last_link_error() : absl::OkStatus(), was_needed);
  }
}

void Launcher::Find() {
  is_looking_ = true;
  const auto place = std::make_shared<absl::StatusOr<Place>>(absl::UnknownError("not asked"));
  OnDirectory([directory = directory_, place] { *place = directory->Find(); },
              [this, place, was_needed = needs_place_] { OnFound(std::move(*place), was_needed); });
}

void Launcher::OnFound(absl::StatusOr<Place> place, bool was_needed) {
  is_looking_ = false;
  if (!MayMove()) {
    Decline(place);
    return;
  }
  if (absl::IsAborted(place.status())) {
    is_looking_ = true;
    loop_.At(MonoNow() + kAskAgainPause, [this] { FindIfNeeded(); });
    return;
  }
  if (!place.ok() || (!needs_place_ && IsPresent(*place))) {
    OnNotFound(place.status(), was_needed);
    return;
  }
  if (host_ != nullptr) {
    Print(absl::StrCat("another launcher has taken run id '", run_id_, "' meanwhile; joining it"));
  } else if (!absl::IsNotFound(agent_->last_link_error())) {
    Print(absl::StrCat("nobody answers any more at ", place_.where(),
                       "; looking for the coordinator again"));
  }
  MoveTo(*std::move(place));
}

void Launcher::FindIfNeeded() {
  is_looking_ = false;
  if (MayMove()) {
    Find();
  } else {
    ScheduleLook();
  }
}

// There is no other place now; `why` is OK if this one is as good as ever.
void Launcher::OnNotFound(const absl::Status& why, bool was_needed) {
  if (needs_place_ && !was_needed) {
    Ask();  // What is known of the agent's end may change the answer.
    return;
  }
  const bool may_be_found = place_.may_move == Place::MayMove::kUntilFirstWorld
                                ? why.ok()
                                : !absl::IsFailedPrecondition(why);
  if (!needs_place_ && may_be_found) {
    ScheduleLook();
    return;
  }
  if (why != agent_->last_link_error()) {
    agent_message_ = std::string(why.message());
  }
  agent_exit_ = agent_exit_.value_or(1);
  loop_.Stop();
}

// What has happened meanwhile keeps this launcher where it is, or ends it.
void Launcher::Decline(const absl::StatusOr<Place>& place) {
  must_find_ = place.ok();
  if (place.ok() && place->hosts) {
    OnDirectory(GivingUp(false), [] {});
  }
  if (host_ != nullptr && !outcome_.has_value() && own_signal_ == 0) {
    GiveWay();
  }
  ScheduleLook();
}

bool Launcher::IsPresent(const Place& place) const {
  return !place.hosts && host_ == nullptr && place.token.value == place_.token.value &&
         std::is_permutation(place.endpoints.begin(), place.endpoints.end(),
                             place_.endpoints.begin(), place_.endpoints.end());
}

// The job here ends: its workers have run, and whoever has taken the run id counts from the start.
void Launcher::GiveWay() {
  host_->Replaced(absl::StrCat(
      "this launcher hosted run id '", run_id_, "' and was silent for ",
      ToSeconds(clocks_.claim_lease),
      " s, or could not renew its claim: another launcher has taken the run id meanwhile; start "
      "this node again to join it there, or give this job another --rdzv-id"));
}

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
  const bool hosts = place_.hosts && place_.is_shared();
  // Or a search that is cut short has just made this launcher a host.
  if (!hosts && !is_looking_ && !must_find_) {
    return;
  }
  const bool closes = outcome_.has_value() && outcome_->kind != OutcomeKind::kStoppedBySignal;
  auto has_left = std::make_shared<bool>(false);
  directory_thread_.Run(GivingUp(closes), [has_left] { *has_left = true; });
  const Duration limit = closes ? kLeaveDirectoryTimeout : kInterruptedLeaveTimeout;
  const MonoTime deadline = MonoNow() + limit;
  while (!*has_left && directory_thread_.Await(deadline)) {
  }
  if (!*has_left && hosts) {
    Log(LogLevel::kWarning,
        absl::StrCat("could not mark run id '", run_id_, "' as ", closes ? "over" : "free", " at ",
                     plan_.uses_file ? plan_.rendezvous_file : ToString(plan_.endpoint), " within ",
                     ToSeconds(limit),
                     " s: its file system or server does not answer; give the "
                     "next job another --rdzv-id"));
  }
}

}  // namespace fsdprun
