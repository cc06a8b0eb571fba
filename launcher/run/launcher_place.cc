// Where a launcher takes part in its job, and how that changes.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// After how long a launcher that has met nobody yet looks whether it waits at the right place;
/// later less often: many may wait for a host that has much to do.
constexpr Duration kFirstLookPause = std::chrono::seconds(1);
constexpr Duration kLongestLookPause = std::chrono::seconds(4);
/// Between two questions that nobody can answer yet.
constexpr Duration kAskAgainPause = std::chrono::milliseconds(100);
/// How long a file system or a server that hangs may delay the exit: the end of a job is worth some
/// waiting, because who comes late must find it.
constexpr Duration kLeaveDirectoryTimeout = std::chrono::seconds(10);
constexpr Duration kInterruptedLeaveTimeout = std::chrono::seconds(2);

}  // namespace

// While a directory waits, probes and signals are answered.
void Launcher::PassTime(Duration length) {
  if (agent_ != nullptr) {  // Called by a reaction of the loop.
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(length).count();
    ::poll(nullptr, 0, static_cast<int>(ms));
    return;
  }
  const EventLoop::TimerId timer = loop_.At(MonoNow() + length, [this] { loop_.Stop(); });
  loop_.Run();
  loop_.Cancel(timer);
}

// The endpoint is another job's: ours has its coordinator elsewhere.
void Launcher::FindAgain() {
  absl::StatusOr<Place> place = directory_->FindAgain(agent_->last_link_error());
  if (absl::IsAborted(place.status()) && own_signal_ == 0) {
    loop_.At(MonoNow() + kAskAgainPause, [this] { FindAgain(); });
    return;
  }
  if (!place.ok()) {
    const bool is_news = place.status() != agent_->last_link_error();
    agent_message_ = is_news ? std::string(place.status().message()) : agent_message_;
    StopWhenDone();
    return;
  }
  MoveTo(*std::move(place));
}

void Launcher::MoveTo(Place place) {
  if (own_signal_ != 0) {
    agent_message_ = StoppedBySignal(own_signal_);
    agent_exit_ = agent_exit_.value_or(1);
    loop_.Stop();
    return;
  }
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
  if (agent_exit_.has_value() || own_signal_ != 0) {
    return false;
  }
  if (!place_.may_move) {
    return place_.is_by_name && host_ == nullptr && !agent_->was_admitted();
  }
  const Generation generation =
      host_ != nullptr ? host_->machine().generation() : agent_->machine().generation();
  return generation == Generation();
}

// The coordinator admitted this node, fell silent before the first world, and was waited for.
bool Launcher::HasLostHostBeforeTheJob() const {
  return host_ == nullptr && place_.may_move && own_signal_ == 0 &&
         agent_->has_lost_coordinator() && agent_->machine().generation() == Generation();
}

// A host whose claim is another's by now forms no world: there may be one there already.
bool Launcher::MustLook() const {
  if (MayMove()) {
    return true;
  }
  if (!place_.may_move || host_ == nullptr || outcome_.has_value() || own_signal_ != 0) {
    return false;
  }
  const JobMachine& job = host_->machine();
  return !job.outcome().has_value() && (has_stalled_ || job.phase() == job::Phase::kRendezvous);
}

// By the coordinator at this place.
bool Launcher::IsAnswered() const {
  const absl::Status& error = agent_->last_link_error();
  return place_.may_move ? agent_->was_admitted() && error.ok() : !absl::IsUnavailable(error);
}

void Launcher::BeginToLook() {
  look_pause_ = kFirstLookPause;
  ScheduleLook();
}

void Launcher::ScheduleLook() {
  loop_.Cancel(std::exchange(look_timer_, 0));
  if (!MustLook() || is_looking_) {
    return;  // Or when this look is over.
  }
  look_timer_ = loop_.At(MonoNow() + look_pause_, [this] { Look(); });
  look_pause_ = host_ != nullptr ? kFirstLookPause : std::min(look_pause_ * 2, kLongestLookPause);
}

// Who waits for a host gives it up after the grace. The look is over before a world can be formed:
// after a stall, all nodes have a new lease.
void Launcher::OnStall(Duration length) {
  if (length < clocks_.coordinator_grace) {
    return;
  }
  has_stalled_ = true;
  look_pause_ = Duration::zero();
  ScheduleLook();
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
  is_looking_ = true;
  auto has_moved = std::make_shared<bool>(false);
  const bool is_after_stall = std::exchange(has_stalled_, false);
  directory_thread_.Run([directory = directory_, has_moved] { *has_moved = directory->HasMoved(); },
                        [this, has_moved, is_after_stall] { OnLook(*has_moved, is_after_stall); });
}

void Launcher::OnLook(bool has_moved, bool is_after_stall) {
  is_looking_ = false;
  if (has_moved && MayMove()) {
    LookElsewhere();
  } else if (has_moved && host_ != nullptr && (is_after_stall || MustLook())) {
    GiveWay();
  } else {
    ScheduleLook();
  }
}

// The job here ends: its workers have run, and whoever has taken the run id counts from the start.
void Launcher::GiveWay() {
  host_->Replaced(absl::StrCat(
      "this launcher hosted run id '", run_id_, "' and was silent for ",
      ToSeconds(clocks_.claim_lease),
      " s, or could not renew its claim: another launcher has taken the run id meanwhile; start "
      "this node again to join it there, or give this job another --rdzv-id"));
}

void Launcher::LookElsewhere() {
  Print(host_ != nullptr ? absl::StrCat("another launcher has taken run id '", run_id_,
                                        "' meanwhile; joining it")
                         : absl::StrCat("nobody answers any more at ", place_.where(),
                                        "; looking for the coordinator again"));
  absl::StatusOr<Place> place = directory_->Find();
  if (absl::IsUnavailable(place.status()) && !place_.may_move) {
    ScheduleLook();  // The name was known a moment ago.
    return;
  }
  if (!place.ok()) {
    agent_message_ = std::string(place.status().message());
    agent_exit_ = 1;
    loop_.Stop();
    return;
  }
  MoveTo(*std::move(place));
}

void Launcher::LeaveDirectory() {
  if (!place_.hosts || !place_.is_shared()) {
    return;
  }
  const bool closes = outcome_.has_value() && outcome_->kind != OutcomeKind::kStoppedBySignal;
  auto has_left = std::make_shared<bool>(false);
  directory_thread_.Run([directory = directory_, closes] { directory->JobEnded(closes); },
                        [has_left] { *has_left = true; });
  const MonoTime deadline =
      MonoNow() + (closes ? kLeaveDirectoryTimeout : kInterruptedLeaveTimeout);
  while (!*has_left && directory_thread_.Await(deadline)) {
  }
}

}  // namespace fsdprun
