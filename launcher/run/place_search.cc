#include "launcher/run/place_search.h"

#include <algorithm>
#include <chrono>

namespace fsdprun {
namespace {

/// After how long a launcher that has met nobody yet looks whether it waits at the right place;
/// later less often, see Place. And between two questions whether a place is a host's own.
constexpr Duration kFirstLookPause = std::chrono::seconds(1);
/// Between two questions where to be that nobody can answer yet.
constexpr Duration kFindAgainPause = std::chrono::milliseconds(100);
/// Between two of the reasons, which may take turns, why a place cannot be looked up.
constexpr Duration kTellAgainPause = std::chrono::seconds(30);

}  // namespace

struct PlaceSearch::Out {
  place::Facts facts;
  MonoTime now;
  std::vector<place::Action> actions;

  template <class What>
  void Do(What what) {
    actions.emplace_back(std::move(what));
  }
};

std::vector<place::Action> PlaceSearch::Step(place::Event event, const place::Facts& facts,
                                             MonoTime now) {
  Out out{facts, now, {}};
  if (state_ != State::kLeaving) {
    std::visit([&](auto& e) { Handle(e, out); }, event);
  } else if (auto* found = std::get_if<place::Found>(&event)) {
    if (std::exchange(finds_in_vain_, false) && found->place.ok() && found->place->hosts) {
      out.Do(place::GiveUpClaim{});
    }
  }
  return std::move(out.actions);
}

// --- Events

void PlaceSearch::Handle(const place::Began& began, Out& out) {
  present_ = began;
  pause_ = std::min(kFirstLookPause, began.longest_look_pause);
  need_ = Need::kBetter;
  has_agent_ended_ = must_find_ = has_told_of_other_ = false;
  unknown_why_.clear();
  other_host_.reset();
  if (!HasQuestion()) {
    GoOn(out);
  }
}

void PlaceSearch::Handle(const place::AgentEnded& ended, Out& out) {
  has_agent_ended_ = true;
  if (ended.end == place::AgentEnd::kOver) {
    return;
  }
  need_ = ended.end == place::AgentEnd::kHostSilent ? Need::kAny : Need::kOther;
  if (!HasQuestion()) {
    BeginQuestion(out);
  }
}

// Most often the next attempt succeeds.
void PlaceSearch::Handle(const place::CoordinatorLost&, Out& out) {
  if (LooksForSuccessor(out) && !HasQuestion()) {
    pause_ = std::min(kFirstLookPause, present_.longest_look_pause);
    GoOn(out);
  }
}

void PlaceSearch::Handle(const place::CheckOrdered&, Out& out) {
  if (!HasQuestion()) {
    BeginQuestion(out);  // Else its answer may do, or the check is still awaited then.
  }
}

void PlaceSearch::Handle(const place::Taken&, Out& out) {
  if (Watches(out)) {
    LookNow(out);
  } else if (out.facts.hosts) {
    BeReplaced(/*is_told=*/true, out);
  }
}

// Who waits for a host gives it up after such a time.
void PlaceSearch::Handle(const place::Stalled&, Out& out) {
  if (Watches(out)) {
    LookNow(out);
  }
}

void PlaceSearch::Handle(place::OtherHost& other, Out& out) {
  other_host_ = std::move(other);
  if (!HasQuestion()) {
    OnOtherHost(out);
  }
}

void PlaceSearch::Handle(const place::Asked& asked, Out& out) {
  if (state_ != State::kAsking) {
    return;
  }
  state_ = State::kSettled;
  if (out.facts.hosts) {
    OnConfirmed(asked, out);
  } else if (asked.has_moved.ok() && *asked.has_moved && MayMove(out)) {
    BeginFind(out);
  } else {
    OnNothingFound(absl::OkStatus(), out);
  }
}

void PlaceSearch::Handle(place::Found& found, Out& out) {
  if (state_ != State::kFinding) {
    return;
  }
  state_ = State::kSettled;
  const absl::Status& status = found.place.status();
  if (target_.has_value()) {
    OnPlaceAtOther(found.place, out);
  } else if (!MayMove(out)) {
    OnFoundTooLate(found.place, out);
  } else if (absl::IsAborted(status)) {
    RetryAt(out.now + kFindAgainPause, /*finds=*/true);
  } else if (!status.ok() || (!needs_place() && found.is_present)) {
    OnNothingFound(status, out);
  } else {
    out.Do(place::MoveTo{*std::move(found.place), {}});
  }
}

void PlaceSearch::Handle(place::FoundAgain& found, Out& out) {
  if (state_ != State::kLookingAgain) {
    return;
  }
  state_ = State::kSettled;
  if (need_ != asked_need_) {
    BeginQuestion(out);
    return;
  }
  const bool is_news = found.where.ok() && !found.is_present && LooksForSuccessor(out);
  GoOn(out);
  if (is_news) {
    out.Do(place::Redirect{*std::move(found.where)});
  }
}

void PlaceSearch::Handle(const place::TimerDue&, Out& out) {
  if (out.now < wake_at()) {
    return;
  }
  const bool is_retry = state_ == State::kRetrying;
  state_ = State::kSettled;
  if (is_retry && retry_finds_) {
    if (MayMove(out)) {
      BeginFind(out);
    } else {
      GoOn(out);
    }
  } else if (!is_retry && LooksForSuccessor(out)) {
    asked_need_ = need_;
    state_ = State::kLookingAgain;
    out.Do(place::LookAgain{});
  } else if (!is_retry && Watches(out) && (out.facts.hosts || !out.facts.is_answered)) {
    BeginQuestion(out);
  } else {
    GoOn(out);
  }
}

void PlaceSearch::Handle(const place::Leave&, Out&) {
  finds_in_vain_ = state_ == State::kFinding && !target_.has_value();
  state_ = State::kLeaving;
}

// --- Decisions

// What runs here goes on, and nothing is claimed.
bool PlaceSearch::LooksForSuccessor(const Out& out) const {
  return present_.can_be_looked_up && !has_agent_ended_ && out.facts.awaits_successor;
}

// Whoever waits for a launcher that is gone, or hosts what another has taken, has not run anything.
// Or it waits for another coordinator.
bool PlaceSearch::Watches(const Out& out) const {
  if (has_agent_ended_) {
    return false;
  }
  if (LooksForSuccessor(out)) {
    return true;
  }
  switch (present_.may_move) {
    case Place::MayMove::kNever:
      return false;
    case Place::MayMove::kUntilAdmitted:
      return !out.facts.hosts && !out.facts.was_admitted;
    case Place::MayMove::kUntilFirstWorld:
      return !out.facts.has_run;
  }
  return false;
}

bool PlaceSearch::MayMove(const Out& out) const {
  const bool can_leave = out.facts.hosts && present_.can_be_taken && out.facts.is_alone;
  return needs_place() || Watches(out) || (can_leave && !has_agent_ended_);
}

void PlaceSearch::BeginQuestion(Out& out) {
  asked_need_ = need_;
  if (need_ == Need::kAny || must_find_) {
    BeginFind(out);
    return;
  }
  state_ = State::kAsking;
  out.Do(place::Ask{});
}

void PlaceSearch::BeginFind(Out& out) {
  must_find_ = false;
  state_ = State::kFinding;
  out.Do(place::Find{});
}

// No question is open, and this place is as good as ever.
void PlaceSearch::GoOn(Out& out) {
  if (other_host_.has_value()) {
    OnOtherHost(out);
  }
  if (HasQuestion()) {
    return;
  }
  if (out.facts.awaits_check) {
    BeginQuestion(out);
    return;
  }
  if (!Watches(out)) {
    state_ = State::kSettled;
    return;
  }
  state_ = State::kWatching;
  at_ = out.now + pause_;
  const Duration longest = out.facts.hosts ? kFirstLookPause : present_.longest_look_pause;
  pause_ = std::clamp(pause_ * 2, std::min(kFirstLookPause, longest), longest);
}

void PlaceSearch::LookNow(Out& out) {
  pause_ = Duration::zero();
  if (state_ != State::kRetrying && !HasQuestion()) {
    GoOn(out);
  }
}

void PlaceSearch::RetryAt(MonoTime at, bool finds) {
  state_ = State::kRetrying;
  at_ = at;
  retry_finds_ = finds;
}

// A host's.
void PlaceSearch::OnConfirmed(const place::Asked& asked, Out& out) {
  if (!asked.has_moved.ok()) {
    if (!out.facts.awaits_check) {
      GoOn(out);
      return;
    }
    RetryAt(out.now + kFirstLookPause, /*finds=*/false);
    std::string why(asked.has_moved.status().message());
    const bool is_first = unknown_why_.empty();
    if (is_first || (why != unknown_why_ && out.now >= unknown_told_at_ + kTellAgainPause)) {
      unknown_why_ = why;
      unknown_told_at_ = out.now;
      out.Do(place::Unknown{std::move(why)});
    }
    return;
  }
  unknown_why_.clear();
  const bool was_awaited = std::exchange(out.facts.awaits_check, false);
  if (!*asked.has_moved) {
    if (other_host_.has_value() && other_host_->has_endpoint) {
      other_host_.reset();  // It has given way meanwhile.
    }
    GoOn(out);
    if (was_awaited) {
      out.Do(place::Confirmed{asked.at});
    }
  } else if (!MayMove(out)) {
    GoOn(out);
    BeReplaced(/*is_told=*/false, out);
  } else {
    out.Do(place::Suspend{});
    if (!Watches(out)) {
      out.Do(place::GiveUpClaim{});  // Nobody is to be sent here any more.
    }
    BeginFind(out);
  }
}

// There is no other place now; `why` is OK if this one is as good as ever, which that of a host is
// not any more that has looked for another.
void PlaceSearch::OnNothingFound(const absl::Status& why, Out& out) {
  if (need_ != asked_need_) {
    BeginQuestion(out);  // What is known of the agent's end may change the answer.
    return;
  }
  const bool must_be_found =
      out.facts.hosts || present_.may_move == Place::MayMove::kUntilFirstWorld;
  const bool may_stay = must_be_found ? why.ok() : !absl::IsFailedPrecondition(why);
  if (!needs_place() && may_stay) {
    GoOn(out);
  } else {
    out.Do(place::End{why});
  }
}

// What has happened meanwhile keeps this launcher where it is.
void PlaceSearch::OnFoundTooLate(const absl::StatusOr<Place>& found, Out& out) {
  must_find_ = found.ok();
  if (found.ok() && found->hosts && !out.facts.hosts) {
    out.Do(place::GiveUpClaim{});
  }
  out.facts.awaits_check = false;
  GoOn(out);
  if (out.facts.hosts) {
    BeReplaced(/*is_told=*/false, out);
  }
}

// What it held there is given up: when the other has left, whoever looks for the job must not be
// sent here, where nobody is taken in any more.
void PlaceSearch::BeReplaced(bool is_told, Out& out) {
  out.Do(place::Replaced{is_told});
  out.Do(place::GiveUpClaim{});
}

// --- Another host at an endpoint that several jobs share

// Whoever is alone goes to the other.
void PlaceSearch::OnOtherHost(Out& out) {
  place::OtherHost other = *std::exchange(other_host_, std::nullopt);
  if (!out.facts.hosts) {
    return;
  }
  if (!out.facts.is_alone) {
    TellOfOther(std::move(other), out);
    return;
  }
  target_ = std::move(other);
  state_ = State::kFinding;
  out.Do(place::FindAt{target_->where});
}

void PlaceSearch::OnPlaceAtOther(absl::StatusOr<Place>& found, Out& out) {
  place::OtherHost other = *std::exchange(target_, std::nullopt);
  if (out.facts.hosts && out.facts.is_alone && found.ok()) {
    out.Do(place::MoveTo{*std::move(found), std::move(other.where)});
    out.Do(place::GiveUpClaim{});
    return;
  }
  if (out.facts.hosts) {
    TellOfOther(std::move(other), out);
  }
  GoOn(out);
}

// Whoever has the endpoint is found there. Workers that run are left alone.
void PlaceSearch::TellOfOther(place::OtherHost other, Out& out) {
  const bool replaces = other.has_endpoint && present_.can_be_taken && out.facts.has_run;
  if (!std::exchange(has_told_of_other_, true)) {
    out.Do(place::TellOfOther{std::move(other.where), replaces});
  }
  if (replaces) {
    BeReplaced(/*is_told=*/true, out);
  }
}

}  // namespace fsdprun
