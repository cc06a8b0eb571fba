#include "launcher/run/place_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun {
namespace {

using place::AgentEnd;
using State = PlaceSearch::State;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string Words(const place::Ask&) { return "ask"; }
std::string Words(const place::Find&) { return "find"; }
std::string Words(const place::FindAt& find) { return "find at " + find.where.front(); }
std::string Words(const place::LookAgain&) { return "look again"; }
std::string Words(const place::Redirect& redirect) {
  return "redirect to " + ToString(redirect.where.endpoints.front());
}
std::string Words(const place::MoveTo& move) {
  return move.place.hosts ? "host" : "join " + move.place.node_address;
}
std::string Words(const place::GiveUpClaim&) { return "give up claim"; }
std::string Words(const place::Confirmed& confirmed) {
  return "confirmed " + std::to_string(confirmed.at.time_since_epoch() / seconds(1));
}
std::string Words(const place::Unknown& unknown) { return "unknown: " + unknown.why; }
std::string Words(const place::Suspend&) { return "suspend"; }
std::string Words(const place::Replaced&) { return "replaced"; }
std::string Words(const place::TellOfOther& tell) { return "tell of " + tell.where.front(); }
std::string Words(const place::End& end) { return "end: " + std::string(end.why.message()); }

/// Drives a PlaceSearch in virtual time and records its actions as words.
class Search {
 public:
  std::vector<std::string> Step(place::Event event) {
    std::vector<std::string> words;
    for (const place::Action& action : search_.Step(std::move(event), facts_, now_)) {
      words.push_back(std::visit([](const auto& what) { return Words(what); }, action));
    }
    return words;
  }
  /// Of who has joined there.
  std::vector<std::string> Join(Place::MayMove may_move) {
    facts_ = {};
    return Step(place::Began{may_move, false, seconds(4)});
  }
  /// Of whom a world runs, and whose coordinator may be taken over.
  void JoinAJobThatHasRun(bool can_be_looked_up = true) {
    facts_ = {.has_run = true, .was_admitted = true, .is_answered = true};
    Step(place::Began{Place::MayMove::kUntilFirstWorld, false, seconds(4), can_be_looked_up});
    EXPECT_EQ(search_.state(), State::kSettled);
  }
  std::vector<std::string> LoseCoordinator() {
    facts_.is_answered = false;
    facts_.awaits_successor = true;
    return Step(place::CoordinatorLost{});
  }
  std::vector<std::string> FindAgain(absl::StatusOr<Whereabouts> where, bool is_present = false) {
    return Step(place::FoundAgain{std::move(where), is_present});
  }
  std::vector<std::string> Host(Place::MayMove may_move) {
    facts_ = {.hosts = true, .is_alone = true};
    return Step(place::Began{may_move, true, seconds(4)});
  }
  /// A host whose workers have run.
  void HostAJobThatHasRun(Place::MayMove may_move = Place::MayMove::kUntilFirstWorld) {
    Host(may_move);
    facts_.is_alone = false;
    facts_.has_run = true;
    Wait(seconds(2));
    EXPECT_EQ(search_.state(), State::kSettled);
  }
  std::vector<std::string> Wait(Duration duration) {
    const MonoTime end = now_ + duration;
    std::vector<std::string> words;
    while (search_.wake_at() <= end) {
      now_ = search_.wake_at();
      for (std::string& word : Step(place::TimerDue{})) {
        words.push_back(std::move(word));
      }
    }
    now_ = end;
    return words;
  }
  std::vector<std::string> Answer(absl::StatusOr<bool> has_moved) {
    return Step(place::Asked{std::move(has_moved), now_});
  }
  std::vector<std::string> Check() {
    facts_.awaits_check = true;
    return Step(place::CheckOrdered{});
  }
  std::vector<std::string> End(AgentEnd end) { return Step(place::AgentEnded{end}); }
  std::vector<std::string> Find(bool hosts, bool is_present = false) {
    Place place;
    place.hosts = hosts;
    place.node_address = "there";
    return Step(place::Found{std::move(place), is_present});
  }
  std::vector<std::string> FindNothing(absl::Status why) {
    return Step(place::Found{std::move(why), false});
  }

  PlaceSearch search_;
  place::Facts facts_;
  MonoTime now_{seconds(100)};
};

const Whereabouts kElsewhere{{{"10.0.0.2", 7}}, ""};

// --- Who waits for another coordinator, with workers that run

TEST(PlaceSearchTest, WhoseCoordinatorMayBeTakenOverLooksWhereItIsAndMovesNothing) {
  Search search;
  search.JoinAJobThatHasRun();
  EXPECT_THAT(search.LoseCoordinator(), IsEmpty());  // The next attempt may succeed.
  EXPECT_THAT(search.Wait(milliseconds(900)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("look again"));
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_THAT(search.FindAgain(absl::UnavailableError("nobody")), IsEmpty());
  EXPECT_THAT(search.Wait(seconds(2)), ElementsAre("look again"));
  EXPECT_THAT(search.FindAgain(kElsewhere, /*is_present=*/true), IsEmpty());
  EXPECT_THAT(search.Wait(seconds(4)), ElementsAre("look again"));
  EXPECT_THAT(search.FindAgain(kElsewhere), ElementsAre("redirect to 10.0.0.2:7"));
  // That one may end too.
  EXPECT_THAT(search.Wait(seconds(4)), ElementsAre("look again"));
}

TEST(PlaceSearchTest, NobodyLooksForAnotherCoordinatorWhoseOwnIsBack) {
  Search search;
  search.JoinAJobThatHasRun();
  search.LoseCoordinator();
  search.facts_.awaits_successor = false;
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kSettled);
  search.LoseCoordinator();  // The next time it looks as soon.
  EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("look again"));
  search.facts_.awaits_successor = false;
  EXPECT_THAT(search.FindAgain(kElsewhere), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kSettled);
}

TEST(PlaceSearchTest, WhereNothingTellsOfAnotherCoordinatorNobodyLooks) {
  Search search;
  search.JoinAJobThatHasRun(/*can_be_looked_up=*/false);
  search.LoseCoordinator();
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  search.JoinAJobThatHasRun();
  EXPECT_THAT(search.Step(place::CoordinatorLost{}), IsEmpty());  // It cannot be taken over.
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
}

TEST(PlaceSearchTest, AnAgentThatHasEndedNeedsNoOtherCoordinator) {
  Search search;
  search.JoinAJobThatHasRun();
  search.LoseCoordinator();
  EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("look again"));
  EXPECT_THAT(search.End(AgentEnd::kOver), IsEmpty());
  EXPECT_THAT(search.FindAgain(kElsewhere), IsEmpty());
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
}

TEST(PlaceSearchTest, BeforeTheFirstWorldNobodyClaimsThePlaceOfACoordinatorThatMayComeAgain) {
  Search search;
  search.JoinAJobThatHasRun();
  search.facts_.has_run = false;
  search.LoseCoordinator();
  EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("look again"));
  EXPECT_THAT(search.End(AgentEnd::kHostSilent), IsEmpty());  // It was waited for in vain.
  EXPECT_THAT(search.FindAgain(absl::UnavailableError("nobody")), ElementsAre("find"));
}

// --- Who has joined

TEST(PlaceSearchTest, WhoWaitsLooksLessAndLessOften) {
  Search search;
  search.Join(Place::MayMove::kUntilAdmitted);
  EXPECT_THAT(search.Wait(milliseconds(900)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(false), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(1900)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("ask"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(search.Answer(false), IsEmpty());
    EXPECT_THAT(search.Wait(milliseconds(3900)), IsEmpty());
    EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("ask"));
  }
}

TEST(PlaceSearchTest, OneQuestionIsOpenAtATime) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("ask"));
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_THAT(search.Step(place::Stalled{}), IsEmpty());
  EXPECT_THAT(search.End(AgentEnd::kOtherRunId), IsEmpty());
  EXPECT_THAT(search.Answer(true), ElementsAre("find"));
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_THAT(search.Answer(true), IsEmpty());
  EXPECT_THAT(search.Find(false), ElementsAre("join there"));
  EXPECT_THAT(search.Find(false), IsEmpty());
}

TEST(PlaceSearchTest, NobodyLooksWhoseCoordinatorAnswersOrWhoIsSettled) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.facts_.is_answered = true;
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kWatching);
  search.facts_.has_run = true;
  search.Wait(seconds(5));
  EXPECT_EQ(search.search_.wake_at(), MonoTime::max());

  search.Join(Place::MayMove::kUntilAdmitted);
  search.facts_.was_admitted = true;
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kSettled);

  search.Join(Place::MayMove::kNever);
  EXPECT_EQ(search.search_.state(), State::kSettled);
}

TEST(PlaceSearchTest, WhoWasStoppedLooksAtOnceAndThenAsBefore) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.Step(place::Stalled{});
  EXPECT_THAT(search.Wait(Duration::zero()), ElementsAre("ask"));
  search.Answer(false);
  EXPECT_THAT(search.Wait(milliseconds(900)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("ask"));
}

TEST(PlaceSearchTest, WhatNobodyKnowsYetIsAskedAgain) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.Wait(seconds(1));
  EXPECT_THAT(search.Answer(true), ElementsAre("find"));
  EXPECT_THAT(search.FindNothing(absl::AbortedError("wait")), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(90)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(10)), ElementsAre("find"));
  EXPECT_THAT(search.FindNothing(absl::AbortedError("wait")), IsEmpty());
  search.facts_.has_run = true;
  EXPECT_THAT(search.Wait(seconds(9)), IsEmpty());
}

TEST(PlaceSearchTest, SamePlaceAsBeforeIsKeptUnlessTheAgentHasEnded) {
  Search search;
  search.Join(Place::MayMove::kUntilAdmitted);
  search.Wait(seconds(1));
  search.Answer(true);
  EXPECT_THAT(search.Find(false, /*is_present=*/true), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kWatching);
  search.Wait(seconds(4));
  search.Answer(true);
  search.End(AgentEnd::kOtherRunId);
  EXPECT_TRUE(search.search_.needs_place());
  EXPECT_THAT(search.Find(false, /*is_present=*/true), ElementsAre("join there"));
  search.Join(Place::MayMove::kUntilAdmitted);
  EXPECT_FALSE(search.search_.needs_place());
}

TEST(PlaceSearchTest, WhatIsKnownOfTheAgentsEndIsAskedAgain) {
  Search search;
  search.Join(Place::MayMove::kUntilAdmitted);
  search.Wait(seconds(1));
  search.End(AgentEnd::kOtherRunId);
  EXPECT_THAT(search.Answer(false), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(false), ElementsAre("end: "));
}

TEST(PlaceSearchTest, WhoWaitedInVainFindsWithoutAsking) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.End(AgentEnd::kHostSilent), ElementsAre("find"));
  EXPECT_THAT(search.Find(true), ElementsAre("host"));
  search.Join(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.End(AgentEnd::kHostSilent), ElementsAre("find"));
  EXPECT_THAT(search.FindNothing(absl::UnavailableError("no etcd")), ElementsAre("end: no etcd"));
}

TEST(PlaceSearchTest, WhoIsTurnedAwayGoesWhereTheJobIsNow) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.facts_.was_admitted = true;
  EXPECT_THAT(search.End(AgentEnd::kTurnedAway), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(true), ElementsAre("find"));
  EXPECT_THAT(search.Find(false), ElementsAre("join there"));
  search.Join(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.End(AgentEnd::kTurnedAway), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(false), ElementsAre("end: "));
}

TEST(PlaceSearchTest, AgentWhosePartIsOverLooksForNothing) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.End(AgentEnd::kOver), IsEmpty());
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
}

TEST(PlaceSearchTest, PlaceThatIsFoundTooLateIsGivenUpAndFoundAnewIfItIsNeeded) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.Wait(seconds(1));
  search.Answer(true);
  search.facts_.was_admitted = search.facts_.has_run = true;
  EXPECT_THAT(search.Find(true), ElementsAre("give up claim"));
  EXPECT_TRUE(search.search_.may_hold_claim());
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  search.facts_.has_run = false;
  EXPECT_THAT(search.End(AgentEnd::kTurnedAway), ElementsAre("find"));
}

TEST(PlaceSearchTest, RefusalEndsWhoWaitsAtAnEndpointButNotSilence) {
  for (const bool is_over : {false, true}) {
    Search search;
    search.Join(Place::MayMove::kUntilAdmitted);
    search.Wait(seconds(1));
    search.Answer(true);
    const auto words = search.FindNothing(is_over ? absl::FailedPreconditionError("over")
                                                  : absl::UnavailableError("nobody"));
    EXPECT_EQ(words, is_over ? std::vector<std::string>{"end: over"} : std::vector<std::string>{});
  }
}

// --- Hosts

TEST(PlaceSearchTest, HostLooksAtItsPlaceUntilItsFirstWorld) {
  Search search;
  search.Host(Place::MayMove::kUntilFirstWorld);
  search.facts_.is_answered = true;
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("ask"));
    EXPECT_THAT(search.Answer(i == 3 ? absl::StatusOr<bool>(absl::UnavailableError("?")) : false),
                IsEmpty());
  }
  search.facts_.has_run = true;
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
}

TEST(PlaceSearchTest, HostWithoutAWorldGoesToWhoeverHasItsPlace) {
  Search search;
  search.Host(Place::MayMove::kUntilFirstWorld);
  search.facts_.is_alone = false;
  EXPECT_THAT(search.Check(), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(true), ElementsAre("suspend", "find"));
  EXPECT_THAT(search.Step(place::CheckOrdered{}), IsEmpty());
  EXPECT_THAT(search.Find(false), ElementsAre("join there"));
}

TEST(PlaceSearchTest, HostWithoutAWorldEndsIfTheOtherCannotBeJoined) {
  Search search;
  search.Host(Place::MayMove::kUntilFirstWorld);
  search.Check();
  search.Answer(true);
  EXPECT_THAT(search.FindNothing(absl::UnavailableError("no etcd")), ElementsAre("end: no etcd"));
}

TEST(PlaceSearchTest, HostThatFormsItsFirstWorldMeanwhileIsReplaced) {
  Search search;
  search.Host(Place::MayMove::kUntilFirstWorld);
  search.Check();
  search.Answer(true);
  search.facts_.has_run = true;
  search.facts_.is_alone = false;
  EXPECT_THAT(search.Find(true), ElementsAre("replaced", "give up claim"));
}

TEST(PlaceSearchTest, CheckIsAnsweredWithTheTimeOfTheLook) {
  Search search;
  search.HostAJobThatHasRun();
  EXPECT_THAT(search.Check(), ElementsAre("ask"));
  EXPECT_THAT(search.Step(place::Asked{false, MonoTime(seconds(101))}),
              ElementsAre("confirmed 101"));
  EXPECT_EQ(search.search_.state(), State::kSettled);
  EXPECT_THAT(search.Check(), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(true), ElementsAre("replaced", "give up claim"));
}

TEST(PlaceSearchTest, LookThatIsOpenAnswersACheckToo) {
  Search search;
  search.Host(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.Wait(seconds(1)), ElementsAre("ask"));
  EXPECT_THAT(search.Check(), IsEmpty());
  EXPECT_THAT(search.Answer(false), ElementsAre("confirmed 101"));
}

TEST(PlaceSearchTest, WhyItIsNotKnownIsToldOnceForEachReason) {
  Search search;
  search.HostAJobThatHasRun();
  search.Check();
  EXPECT_THAT(search.Answer(absl::UnavailableError("silent")), ElementsAre("unknown: silent"));
  EXPECT_THAT(search.Wait(milliseconds(900)), IsEmpty());
  EXPECT_THAT(search.Wait(milliseconds(100)), ElementsAre("ask"));
  EXPECT_THAT(search.Answer(absl::UnavailableError("silent")), IsEmpty());
  search.Wait(seconds(1));
  EXPECT_THAT(search.Answer(absl::InternalError("garbled")), IsEmpty());  // They may take turns.
  search.Wait(seconds(30));
  EXPECT_THAT(search.Answer(absl::InternalError("garbled")), ElementsAre("unknown: garbled"));
  search.Wait(seconds(1));
  EXPECT_THAT(search.Answer(false), ElementsAre("confirmed 135"));
  search.Check();
  EXPECT_THAT(search.Answer(absl::InternalError("garbled")), ElementsAre("unknown: garbled"));
}

TEST(PlaceSearchTest, NobodyAsksAgainForAnAnswerThatIsNotAwaitedAnyMore) {
  Search search;
  search.HostAJobThatHasRun();
  search.Check();
  search.Answer(absl::UnavailableError("silent"));
  search.facts_.awaits_check = false;
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
  EXPECT_EQ(search.search_.state(), State::kSettled);
}

TEST(PlaceSearchTest, WhatTheRenewalFindsIsToldUnlessTheHostMayStillMove) {
  Search search;
  search.HostAJobThatHasRun();
  EXPECT_THAT(search.Step(place::Taken{}), ElementsAre("replaced", "give up claim"));
  search.Host(Place::MayMove::kUntilFirstWorld);
  EXPECT_THAT(search.Step(place::Taken{}), IsEmpty());
  EXPECT_THAT(search.Wait(Duration::zero()), ElementsAre("ask"));
}

// --- Endpoints that several jobs share

TEST(PlaceSearchTest, HostThatIsAloneGoesToTheOther) {
  Search search;
  search.Host(Place::MayMove::kNever);
  EXPECT_EQ(search.search_.state(), State::kSettled);
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), ElementsAre("find at b"));
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), IsEmpty());
  EXPECT_THAT(search.Find(false), ElementsAre("join there", "give up claim"));
}

TEST(PlaceSearchTest, HostThatIsAloneLeavesAPlaceThatItHasLost) {
  Search search;
  search.Host(Place::MayMove::kNever);
  search.Check();
  EXPECT_THAT(search.Answer(true), ElementsAre("suspend", "give up claim", "find"));
  EXPECT_THAT(search.FindNothing(absl::UnavailableError("gone")), ElementsAre("end: gone"));
}

TEST(PlaceSearchTest, HostThatHasCompanyIsReplacedOnceItsWorkersHaveRun) {
  Search search;
  search.Host(Place::MayMove::kNever);
  search.facts_.is_alone = false;
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), ElementsAre("tell of b"));
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), IsEmpty());
  search.facts_.has_run = true;
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), ElementsAre("replaced", "give up claim"));
}

TEST(PlaceSearchTest, WhoHasTheEndpointIsNotReplacedByAHostThatAsksThere) {
  Search search;
  search.Host(Place::MayMove::kNever);
  search.facts_.is_alone = false;
  search.facts_.has_run = true;
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}, /*has_endpoint=*/false}),
              ElementsAre("tell of b"));
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}, /*has_endpoint=*/false}), IsEmpty());
}

TEST(PlaceSearchTest, OtherHostThatHasGivenWayDuringAQuestionIsForgotten) {
  Search search;
  search.Host(Place::MayMove::kNever);
  EXPECT_THAT(search.Check(), ElementsAre("ask"));
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), IsEmpty());
  EXPECT_THAT(search.Answer(false), ElementsAre("confirmed 100"));
  EXPECT_EQ(search.search_.state(), State::kSettled);
}

TEST(PlaceSearchTest, OtherHostThatAsksDuringAQuestionIsNotForgotten) {
  Search search;
  search.Host(Place::MayMove::kNever);
  EXPECT_THAT(search.Check(), ElementsAre("ask"));
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}, /*has_endpoint=*/false}), IsEmpty());
  EXPECT_THAT(search.Answer(false), ElementsAre("find at b", "confirmed 100"));
  search.facts_.is_alone = false;
  search.facts_.awaits_check = false;
  EXPECT_THAT(search.Find(false), ElementsAre("tell of b"));
}

TEST(PlaceSearchTest, CheckThatIsOrderedWhileTheOtherIsLookedForIsDoneAfterwards) {
  Search search;
  search.Host(Place::MayMove::kNever);
  search.Step(place::OtherHost{{"b"}});
  EXPECT_THAT(search.Check(), IsEmpty());
  EXPECT_THAT(search.FindNothing(absl::UnavailableError("no route")),
              ElementsAre("tell of b", "ask"));
}

// --- The end

TEST(PlaceSearchTest, WhoLeavesGivesUpWhatASearchStillFinds) {
  Search search;
  search.Join(Place::MayMove::kUntilFirstWorld);
  search.Wait(seconds(1));
  search.Answer(true);
  EXPECT_THAT(search.Step(place::Leave{}), IsEmpty());
  EXPECT_TRUE(search.search_.may_hold_claim());
  EXPECT_THAT(search.End(AgentEnd::kHostSilent), IsEmpty());
  EXPECT_THAT(search.Step(place::Leave{}), IsEmpty());
  EXPECT_THAT(search.Find(true), ElementsAre("give up claim"));
  EXPECT_FALSE(search.search_.may_hold_claim());
  EXPECT_EQ(search.search_.wake_at(), MonoTime::max());
}

TEST(PlaceSearchTest, WhoLeavesBeginsNothing) {
  Search search;
  search.HostAJobThatHasRun();
  search.Check();
  search.Step(place::Leave{});
  EXPECT_FALSE(search.search_.may_hold_claim());
  EXPECT_THAT(search.Answer(true), IsEmpty());
  EXPECT_THAT(search.Step(place::Taken{}), IsEmpty());
  EXPECT_THAT(search.Step(place::CheckOrdered{}), IsEmpty());
  EXPECT_THAT(search.Step(place::OtherHost{{"b"}}), IsEmpty());
  EXPECT_THAT(search.Wait(seconds(60)), IsEmpty());
}

}  // namespace
}  // namespace fsdprun
