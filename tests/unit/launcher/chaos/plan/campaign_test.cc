#include "launcher/chaos/plan/campaign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/chaos/plan/campaign_case.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Action = Campaign::Action;
using State = FaultRecord::State;

constexpr Action kBeginFirst{Action::Kind::kBegin, 0};
constexpr Action kBeginSecond{Action::Kind::kBegin, 1};
constexpr Action kLiftFirst{Action::Kind::kLift, 0};
constexpr Action kEnd{.kind = Action::Kind::kEnd};

TEST(CampaignTest, AJobThatNeverRunsIsGivenUp) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.view.phase = "rendezvous";
  EXPECT_THAT(c.After(seconds(0)), IsEmpty());
  EXPECT_THAT(c.After(seconds(60)), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.end(), Campaign::End::kNeverRan);
}

TEST(CampaignTest, AFaultThatIsNotAnsweredInTimeIsTheEnd) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  EXPECT_THAT(c.After(seconds(60)), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.end(), Campaign::End::kNotSurvived);
  EXPECT_EQ(c.campaign.records()[0].state, State::kUnanswered);
  EXPECT_EQ(c.campaign.records()[1].state, State::kPlanned);
}

TEST(CampaignTest, ADeathIsAnsweredByAnotherWorldThatHolds) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  EXPECT_THAT(c.After(milliseconds(900)), IsEmpty());
  EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
  c.view.generation = 2;
  c.view.phase = "preparing";
  EXPECT_THAT(c.After(milliseconds(50)), IsEmpty());
  c.view.phase = "running";
  c.view.restarts_used = 1;
  EXPECT_THAT(c.After(milliseconds(50)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle - milliseconds(1)), IsEmpty());
  EXPECT_THAT(c.After(milliseconds(1)), ElementsAre(kEnd));
  const FaultRecord& record = c.campaign.records()[0];
  EXPECT_EQ(record.state, State::kAnswered);
  EXPECT_EQ(record.answered_at - record.begun_at, seconds(1));
  EXPECT_EQ(record.generation_after, 2u);
  EXPECT_EQ(record.restarts_after - record.restarts_before, 1);
  EXPECT_EQ(c.campaign.end(), Campaign::End::kDone);
}

// A world runs as soon as it is formed: its workers may crash when they read their checkpoint.
TEST(CampaignTest, WorldsThatDoNotHoldAreNoAnswer) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  while (c.campaign.end() == Campaign::End::kNotYet) {
    ++c.view.generation;
    c.After(milliseconds(900));
  }
  EXPECT_EQ(c.campaign.end(), Campaign::End::kNotSurvived);
}

TEST(CampaignTest, WorkersThatReportStepsAnswerWithTheNextOne) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1)), StopAgent(seconds(1), seconds(1))}));
  c.view.step = 10;
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  c.view.generation = 2;
  c.view.step = -1;
  EXPECT_THAT(c.After(seconds(30)), IsEmpty());
  EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
  c.view.step = 8;  // It has fallen back.
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_EQ(c.campaign.records()[0].state, State::kAnswered);
  EXPECT_EQ(c.campaign.records()[0].answered_at, c.now);

  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginSecond));
  c.campaign.OnBegun(1, c.now, "agent 0", {});
  c.After(seconds(1));
  c.campaign.OnLifted(1, c.now);
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(seconds(30)), IsEmpty());  // It stands still.
  c.view.step = 9;
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kEnd));
}

// The steps were done without the victim: what it does when it is back is still to be seen.
TEST(CampaignTest, AWorldThatWasFormedMeanwhileAnswersByAStepAfterwards) {
  CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(60))}));
  c.view.step = 10;
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  c.view.generation = 2;
  c.view.step = 560;
  EXPECT_THAT(c.After(seconds(60)), ElementsAre(kLiftFirst));
  c.campaign.OnLifted(0, c.now);
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(seconds(30)), IsEmpty());
  EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
  c.view.generation = 3;
  c.view.step = -1;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  c.view.step = 558;  // It has fallen back.
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.records()[0].generation_before, 1u);
  EXPECT_EQ(c.campaign.records()[0].generation_after, 3u);
}

// The job was asked before the fault was over, and its answer came afterwards.
TEST(CampaignTest, WhatIsHeardLateWasDoneMeanwhile) {
  CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(60))}));
  c.view.step = 10;
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  EXPECT_THAT(c.After(seconds(60)), ElementsAre(kLiftFirst));
  c.now += milliseconds(50);
  c.campaign.OnLifted(0, c.now);
  c.view.generation = 2;
  c.view.step = 560;
  c.view.asked_at = c.now - milliseconds(20);
  EXPECT_THAT(c.campaign.Step(c.now, c.view), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  c.view.step = 561;
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kEnd));
}

TEST(CampaignTest, WhatIsDoneLaterIsAnsweredByWhatComesAfterIt) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.view.generation = 2;  // By itself.
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  c.campaign.OnBegun(0, c.now, "step-9 and kill worker 1", kNewWorld);
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), IsEmpty());
  c.view.generation = 3;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.records()[0].generation_before, 2u);
}

TEST(CampaignTest, WhatHangsAtItsBeginningIsLeftOut) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  EXPECT_THAT(c.After(seconds(60)), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kLiftFirst));
  c.campaign.OnLifted(0, c.now);
  EXPECT_EQ(c.campaign.records()[0].state, State::kSkipped);
  EXPECT_THAT(c.campaign.records()[0].what, ::testing::HasSubstr("within 1 min"));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginSecond));
}

TEST(CampaignTest, AWorldThatLacksWorkersIsNoAnswerWhereAllComeBack) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", kNewWorld);
  c.view.generation = 2;
  c.view.world_size = 2;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), IsEmpty());
  c.view.world_size = 4;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), ElementsAre(kEnd));
}

TEST(CampaignTest, ANewCoordinatorIsAnotherProcess) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "coordinator", {.new_coordinator = true});
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), IsEmpty());
  c.view.coordinator_pid = 101;
  c.view.is_whole = false;
  EXPECT_THAT(c.After(CampaignCase::kSettle), IsEmpty());
  c.view.is_whole = true;
  EXPECT_THAT(c.After(milliseconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), ElementsAre(kEnd));
}

TEST(CampaignTest, WhatLastsIsLiftedAndThenHasToHold) {
  CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(4))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  EXPECT_THAT(c.After(milliseconds(3999)), IsEmpty());
  EXPECT_THAT(c.After(milliseconds(1)), ElementsAre(kLiftFirst));
  c.campaign.OnLifted(0, c.now);
  EXPECT_THAT(c.After(milliseconds(300)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.records()[0].generation_after, 1u);
}

TEST(CampaignTest, WhatWasAskedBeforeAFaultIsNoAnswer) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  c.view.generation = 2;
  EXPECT_THAT(c.campaign.Step(c.now + seconds(1),
                              [&] {
                                JobView old = c.view;
                                old.asked_at = c.now - milliseconds(1);
                                return old;
                              }()),
              IsEmpty());
}

TEST(CampaignTest, TheNextFaultWaitsForTheAnswerAndThenItsPause) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(2))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  EXPECT_THAT(c.After(seconds(10)), IsEmpty());
  c.view.generation = 2;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  EXPECT_THAT(c.After(CampaignCase::kSettle), IsEmpty());
  EXPECT_THAT(c.After(milliseconds(1999)), IsEmpty());
  EXPECT_THAT(c.After(milliseconds(1)), ElementsAre(kBeginSecond));
}

TEST(CampaignTest, NothingIsDoneToAJobThatDoesNotRun) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.view.phase = "stopping";
  EXPECT_THAT(c.After(seconds(5)), IsEmpty());
  c.view.phase = "running";
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
}

TEST(CampaignTest, FixedTimesAreKeptAlthoughFaultsAreOpen) {
  Campaign::Options options = OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(2))});
  options.plan.has_fixed_times = true;
  CampaignCase c(options);
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginSecond));
}

TEST(CampaignTest, AFixedTimeDoesNotWaitForAFaultThatMeetsNobody) {
  Campaign::Options options = OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(1))});
  options.plan.has_fixed_times = true;
  CampaignCase c(options);
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst, kBeginSecond));
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  c.campaign.OnBegun(1, c.now, "worker 1", kNewWorld);
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnBegun(0, c.now, "worker 0", kNewWorld);
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
}

TEST(CampaignTest, NoFaultBeginsAfterTheDuration) {
  Campaign::Options options = OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(10))});
  options.duration = seconds(5);
  CampaignCase c(options);
  EXPECT_THAT(c.After(seconds(0)), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.Answer(0);
  EXPECT_THAT(c.After(seconds(2)), ElementsAre(kEnd));
  EXPECT_EQ(c.campaign.end(), Campaign::End::kDone);
  EXPECT_EQ(c.campaign.records().size(), 1u);
}

TEST(CampaignTest, WhatCannotBeDoneIsTriedForAWhileAndLeftOut) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1)), KillWorker(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());  // It is not known yet whether it can be done.
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  EXPECT_EQ(c.campaign.records()[0].state, State::kPlanned);
  EXPECT_THAT(c.After(milliseconds(2800)), ElementsAre(kBeginFirst));
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  EXPECT_THAT(c.After(milliseconds(199)), IsEmpty()) << "to look for it takes time";
  EXPECT_THAT(c.After(milliseconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  EXPECT_THAT(c.After(milliseconds(900)), IsEmpty());
  EXPECT_THAT(c.After(milliseconds(100)), ElementsAre(kBeginSecond));
  EXPECT_EQ(c.campaign.records()[0].state, State::kSkipped);
}

// It would be full and free in turn, which is another fault.
TEST(CampaignTest, ADiskThatCannotBeFilledIsNotTriedAgain) {
  CampaignCase c(OptionsFor({FillDisk(seconds(1)), KillWorker(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnSkipped(0, c.now, "no file may get so large");
  EXPECT_EQ(c.campaign.records()[0].state, State::kSkipped);
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginSecond));
}

// It fills up slowly, and is full long before the last block of it is taken.
TEST(CampaignTest, FailuresBelongToAFaultThatIsBeingDone) {
  CampaignCase c(OptionsFor({FillDisk(seconds(1))}));
  c.After(seconds(0));
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kBeginFirst));
  c.campaign.OnFailure("no space left");
  EXPECT_THAT(c.After(seconds(61)), ElementsAre(kLiftFirst, kEnd));
  EXPECT_THAT(c.campaign.records()[0].failures, ElementsAre("no space left"));
  EXPECT_THAT(c.campaign.unexplained(), IsEmpty());
  EXPECT_THAT(c.campaign.records()[0].what, ::testing::HasSubstr("slow, or hangs"));
  c.campaign.OnFailure("another");
  EXPECT_THAT(c.campaign.unexplained(), ElementsAre("another"));
}

TEST(CampaignTest, WhatWasDoneTooLateIsToldWithWhyItWasLeftOut) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.After(seconds(61));
  c.campaign.OnDoneTooLate(0, "step-9 was damaged after that");
  EXPECT_THAT(c.campaign.records()[0].what, ::testing::HasSubstr("; step-9 was damaged"));
  c.campaign.OnDoneTooLate(1, "of a fault that was dropped");
}

TEST(CampaignTest, StoppedItLiftsWhatIsThere) {
  CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(4)), KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  EXPECT_THAT(c.campaign.Stop(), ElementsAre(kLiftFirst, kEnd));
  EXPECT_THAT(c.campaign.Stop(), IsEmpty());
  EXPECT_THAT(c.After(seconds(9)), IsEmpty());
  EXPECT_EQ(c.campaign.end(), Campaign::End::kStopped);
  c.campaign.OnLifted(0, c.now);
  EXPECT_THAT(c.campaign.OnJobOver(c.now, 1), IsEmpty());
  EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
  EXPECT_EQ(c.campaign.end(), Campaign::End::kStopped);
}

TEST(CampaignTest, WhatFailsWhileTheJobIsBeingEndedIsNoFailureOfTheJob) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.campaign.Stop();
  c.campaign.OnFailure("ended");
  EXPECT_THAT(c.campaign.unexplained(), IsEmpty());
}

TEST(CampaignTest, FailuresBelongToTheLatestOpenFault) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.campaign.OnFailure("before");
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  c.campaign.OnFailure("killed");
  EXPECT_THAT(c.campaign.records()[0].failures, ElementsAre("killed"));
  EXPECT_THAT(c.campaign.unexplained(), ElementsAre("before"));
}

}  // namespace
}  // namespace fsdprun::chaos
