// Answers of a job that may be none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/chaos/plan/campaign.h"
#include "launcher/chaos/plan/report.h"
#include "tests/unit/launcher/chaos/plan/campaign_case.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using State = FaultRecord::State;

constexpr Campaign::Action kAllDone{.kind = Campaign::Action::Kind::kEnd};

/// A job that ran already, and that goes on with fewer workers if it has to.
Campaign::Options OfElasticJob(PlannedFault fault) {
  Campaign::Options options = OptionsFor({fault});
  options.needs_full_world = false;
  return options;
}

/// Its agent is stopped for a minute, and the other one has formed a world without it meanwhile.
CampaignCase WithoutItsStoppedAgent() {
  CampaignCase c(OfElasticJob(StopAgent(seconds(1), seconds(60))));
  c.view.step = 10;
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  c.view.generation = 2;
  c.view.world_size = 2;
  c.view.step = 560;
  c.After(seconds(60));
  c.campaign.OnLifted(0, c.now);
  return c;
}

// What it does when it is back is still to be seen.
TEST(CampaignDoubtTest, AWorldThatLacksWorkersIsNoAnswerAsLongAsTheyMayComeBack) {
  CampaignCase c = WithoutItsStoppedAgent();
  for (int i = 0; i < 50; ++i) {
    ++c.view.step;
    EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  }
  c.view.generation = 3;
  c.view.world_size = 4;
  c.view.step = -1;
  EXPECT_THAT(c.After(seconds(5)), IsEmpty()) << "it has not got on yet";
  c.view.step = 600;
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kAllDone));
  EXPECT_EQ(c.campaign.records()[0].state, State::kAnswered);
  EXPECT_EQ(c.campaign.records()[0].generation_after, 3u);
}

TEST(CampaignDoubtTest, AJobThatHangsWhenTheyAreBackHasNotSurvived) {
  CampaignCase c = WithoutItsStoppedAgent();
  c.view.step = 561;
  c.After(seconds(1));
  c.view.step = 562;
  c.After(seconds(1));
  c.view.generation = 3;
  c.view.world_size = 4;
  c.view.step = -1;
  c.After(seconds(1));
  EXPECT_THAT(c.After(seconds(60)), ElementsAre(kAllDone));
  EXPECT_EQ(c.campaign.end(), Campaign::End::kNotSurvived);
}

TEST(CampaignDoubtTest, AJobThatGoesOnWithoutThemHasSurvivedOnceThereIsNoPatienceLeft) {
  CampaignCase c = WithoutItsStoppedAgent();
  c.view.step = 561;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  c.view.step = 562;
  EXPECT_THAT(c.After(seconds(58)), IsEmpty());
  EXPECT_THAT(c.After(seconds(2)), ElementsAre(kAllDone));
  EXPECT_EQ(c.campaign.records()[0].state, State::kAnswered);
  EXPECT_THAT(RecordText(c.campaign, 0), HasSubstr("the job got on with 2 of 4 workers"));
}

/// A worker is killed. Then an answer comes for which the job was asked before that, and tells of
/// another world.
CampaignCase WithALateAnswer() {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.view.step = 10;
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  c.view.asked_at = c.now - milliseconds(1);
  c.view.generation = 2;
  c.now += milliseconds(20);
  EXPECT_THAT(c.campaign.Step(c.now, c.view), IsEmpty());
  return c;
}

TEST(CampaignDoubtTest, AWorldThatMayBeFromBeforeTheFaultIsNoNewOne) {
  CampaignCase c = WithALateAnswer();
  c.After(milliseconds(400));
  c.view.step = 11;  // The worker's death is not seen yet.
  EXPECT_THAT(c.After(milliseconds(20)), IsEmpty());
  c.view.generation = 3;
  c.view.step = -1;
  EXPECT_THAT(c.After(seconds(1)), IsEmpty());
  c.view.step = 9;
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kAllDone));
  EXPECT_EQ(c.campaign.records()[0].state, State::kAnswered);
}

// The job was quick, and the answer slow.
TEST(CampaignDoubtTest, IfNoOtherWorldComesItWasTheNewOne) {
  CampaignCase c = WithALateAnswer();
  c.After(milliseconds(400));
  c.view.step = 11;
  EXPECT_THAT(c.After(seconds(59)), IsEmpty());
  EXPECT_THAT(c.After(seconds(1)), ElementsAre(kAllDone));
  EXPECT_EQ(c.campaign.records()[0].state, State::kAnswered);
  EXPECT_EQ(c.campaign.end(), Campaign::End::kDone);
}

}  // namespace
}  // namespace fsdprun::chaos
