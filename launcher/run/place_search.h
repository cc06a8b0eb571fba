#pragma once

// Where a launcher takes part in its job, and whether it should be elsewhere: when the directory is
// asked, and what follows from its answers. A pure state machine: no clock, thread, I/O or log.

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/directory/directory.h"

namespace fsdprun {

namespace place {

/// What agent and coordinator of this launcher have come to when something happens.
struct Facts {
  /// The coordinator is here.
  bool hosts = false;
  /// Of a host: nobody else has joined, and nothing is lost if they meet elsewhere.
  bool is_alone = false;
  /// There has been a world here.
  bool has_run = false;
  bool was_admitted = false;
  /// By the coordinator at this place.
  bool is_answered = false;
  /// Of a host: see JobMachine::awaits_place().
  bool awaits_check = false;
  /// The coordinator is lost, and another may take the job over: workers that run go on.
  bool awaits_successor = false;
};

// --- Events

/// A new agent takes part at a place, which may be the same as before.
struct Began {
  Place::MayMove may_move = Place::MayMove::kNever;
  bool can_be_taken = false;
  Duration longest_look_pause{};
  bool can_be_looked_up = false;
};
enum class AgentEnd {
  kOver,        // its part is over
  kOtherRunId,  // who answers there has another run id
  kTurnedAway,  // the coordinator did not want it, or not any more
  kHostSilent,  // its coordinator was waited for in vain
};
struct AgentEnded {
  AgentEnd end = AgentEnd::kOver;
};
/// The stream to the coordinator broke.
struct CoordinatorLost {};
/// See job::PlaceAsked.
struct CheckOrdered {};
/// See DirectoryContext::on_taken.
struct Taken {};
/// This process did not run for as long as one waits for a host.
struct Stalled {};
/// Another launcher hosts the job as well, at these addresses. `has_endpoint`: whoever looks for
/// the job is sent there; else this launcher has the endpoint, and was asked by the other.
struct OtherHost {
  std::vector<std::string> where;
  bool has_endpoint = true;
};
/// The answer to Ask, and just before what time it was looked up.
struct Asked {
  absl::StatusOr<bool> has_moved;
  MonoTime at;
};
/// The answer to Find and FindAt.
struct Found {
  absl::StatusOr<Place> place;
  /// It is where this launcher has joined already.
  bool is_present = false;
};
/// The answer to LookAgain.
struct FoundAgain {
  absl::StatusOr<Whereabouts> where;
  /// It is where attempts lead already.
  bool is_present = false;
};
/// The time of wake_at() has come.
struct TimerDue {};
/// This launcher stays where it is until it ends: a signal has come, or it is ending.
struct Leave {};

using Event = std::variant<Began, AgentEnded, CoordinatorLost, CheckOrdered, Taken, Stalled,
                           OtherHost, Asked, Found, FoundAgain, TimerDue, Leave>;

// --- Actions

/// Ask the directory whether the place has moved: a host's by Confirm(), else by HasMoved().
struct Ask {};
struct Find {};
/// See SharedEndpoint::PlaceAt().
struct FindAt {
  std::vector<std::string> where;
};
/// See Directory::LookAgain().
struct LookAgain {};
/// Attempts to reach the coordinator lead there from now on; agent and workers stay.
struct Redirect {
  Whereabouts where;
};
/// Take part at `place` from now on, which was found as the other host's if `other_host` says so.
struct MoveTo {
  Place place;
  std::vector<std::string> other_host;
};
/// What the directory holds for this launcher as a host is not to be.
struct GiveUpClaim {};
/// See job::PlaceChecked.
struct Confirmed {
  MonoTime at;
};
/// See job::PlaceUnknown; an operator is told.
struct Unknown {
  std::string why;
};
/// Another has the place, and this launcher looks where: no world may be formed here meanwhile.
struct Suspend {};
/// See job::HostReplaced. `is_told`: an operator knows it already.
struct Replaced {
  bool is_told = false;
};
/// An operator is told that the job has another host, which `replaces` this one.
struct TellOfOther {
  std::vector<std::string> where;
  bool replaces = false;
};
/// The launcher ends; `why` is OK if its agent has said why.
struct End {
  absl::Status why;
};

using Action = std::variant<Ask, Find, FindAt, LookAgain, Redirect, MoveTo, GiveUpClaim, Confirmed,
                            Unknown, Suspend, Replaced, TellOfOther, End>;

}  // namespace place

/// Decides for one launcher. Total: every event is legal in every state. One question to the
/// directory is open at a time. Thread: one.
class PlaceSearch {
 public:
  enum class State {
    kSettled,       // nothing is looked for
    kWatching,      // the place may move; it is looked at from time to time
    kAsking,        // Ask is open
    kFinding,       // Find or FindAt is open
    kLookingAgain,  // LookAgain is open
    kRetrying,      // one of them is to be repeated, because nobody knew
    kLeaving,       // nothing begins any more
  };

  /// What is to be done, in this order.
  std::vector<place::Action> Step(place::Event event, const place::Facts& facts, MonoTime now);

  State state() const { return state_; }
  /// Deliver TimerDue at this time; MonoTime::max() means never.
  MonoTime wake_at() const {
    return state_ == State::kWatching || state_ == State::kRetrying ? at_ : MonoTime::max();
  }
  /// The agent has ended, and nothing but another place is of use.
  bool needs_place() const { return need_ != Need::kBetter; }
  /// The directory may hold a place for this launcher that it does not host at.
  bool may_hold_claim() const { return state_ == State::kFinding || finds_in_vain_ || must_find_; }

 private:
  enum class Need {
    kBetter,  // this place is good, but there may be another
    kOther,   // this one is of no use; is there another?
    kAny,     // the same, and the directory need not be asked
  };
  struct Out;

  void Handle(const place::Began& began, Out& out);
  void Handle(const place::AgentEnded& ended, Out& out);
  void Handle(const place::CoordinatorLost&, Out& out);
  void Handle(const place::CheckOrdered&, Out& out);
  void Handle(const place::Taken&, Out& out);
  void Handle(const place::Stalled&, Out& out);
  void Handle(place::OtherHost& other, Out& out);
  void Handle(const place::Asked& asked, Out& out);
  void Handle(place::Found& found, Out& out);
  void Handle(place::FoundAgain& found, Out& out);
  void Handle(const place::TimerDue&, Out& out);
  void Handle(const place::Leave&, Out& out);

  bool HasQuestion() const {
    return state_ == State::kAsking || state_ == State::kFinding || state_ == State::kLookingAgain;
  }
  bool LooksForSuccessor(const Out& out) const;
  bool Watches(const Out& out) const;
  bool MayMove(const Out& out) const;
  void BeginQuestion(Out& out);
  void BeginFind(Out& out);
  void GoOn(Out& out);
  void LookNow(Out& out);
  void RetryAt(MonoTime at, bool finds);
  void OnConfirmed(const place::Asked& asked, Out& out);
  void OnNothingFound(const absl::Status& why, Out& out);
  void OnFoundTooLate(const absl::StatusOr<Place>& found, Out& out);
  void OnOtherHost(Out& out);
  void OnPlaceAtOther(absl::StatusOr<Place>& found, Out& out);
  void TellOfOther(place::OtherHost other, Out& out);
  void BeReplaced(bool is_told, Out& out);

  State state_ = State::kSettled;
  Need need_ = Need::kBetter;
  /// That of the open question; it may have grown since.
  Need asked_need_ = Need::kBetter;
  /// Of kWatching and kRetrying.
  MonoTime at_ = MonoTime::max();
  /// kRetrying is about Find.
  bool retry_finds_ = false;

  // The present place.
  place::Began present_;
  Duration pause_{};
  bool has_agent_ended_ = false;
  /// The directory has answered with another place, which came too late: it does not know this one
  /// any more.
  bool must_find_ = false;
  /// Why it was not known last whether the place is still this host's, and when that was told.
  std::string unknown_why_;
  MonoTime unknown_told_at_{};
  /// Another host that was heard of while a question was open.
  std::optional<place::OtherHost> other_host_;
  bool has_told_of_other_ = false;

  /// Of an open FindAt.
  std::optional<place::OtherHost> target_;
  /// In kLeaving: Find is open.
  bool finds_in_vain_ = false;
};

}  // namespace fsdprun
