// How a campaign takes the end of its job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/chaos/plan/campaign.h"
#include "tests/unit/launcher/chaos/plan/campaign_case.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using State = FaultRecord::State;

constexpr Campaign::Action kLiftTheFirst{Campaign::Action::Kind::kLift, 0};

TEST(CampaignEndTest, TheEndOfTheJobAnswersWhatIsOpenByItsCode) {
  for (const int code : {0, 1}) {
    CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(4))}));
    c.After(seconds(0));
    c.After(seconds(1));
    c.campaign.OnBegun(0, c.now, "agent 1", {});
    EXPECT_THAT(c.campaign.OnJobOver(c.now, code), ElementsAre(kLiftTheFirst));
    c.campaign.OnLifted(0, c.now);
    EXPECT_EQ(c.campaign.records()[0].state, code == 0 ? State::kAnswered : State::kUnanswered);
    EXPECT_EQ(c.campaign.end(), Campaign::End::kJobOver);
  }
}

TEST(CampaignEndTest, AnEndThatNobodyKnowsIsNoAnswer) {
  CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(4))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "agent 1", {});
  EXPECT_THAT(c.campaign.OnJobOver(c.now, std::nullopt), ElementsAre(kLiftTheFirst));
  c.campaign.OnLifted(0, c.now);
  EXPECT_EQ(c.campaign.records()[0].state, State::kUnanswered);
  EXPECT_FALSE(c.campaign.job_exit_code().has_value());
  // It is asked once.
  EXPECT_THAT(c.campaign.OnJobOver(c.now, 0), IsEmpty());
  EXPECT_FALSE(c.campaign.job_exit_code().has_value());
}

// A script may do more after its job.
TEST(CampaignEndTest, WhereACommandGoesOnAfterItsJobItsOwnEndTellsOfTheJobs) {
  for (const int code : {0, 1}) {
    CampaignCase c(OptionsFor({StopAgent(seconds(1), seconds(4)), KillWorker(seconds(1))}));
    c.After(seconds(0));
    c.After(seconds(1));
    c.campaign.OnBegun(0, c.now, "agent 1", {});
    c.now += seconds(1);
    EXPECT_THAT(c.campaign.OnJobGone(c.now), ElementsAre(kLiftTheFirst));
    c.campaign.OnLifted(0, c.now);
    EXPECT_THAT(c.campaign.OnJobGone(c.now), IsEmpty());
    EXPECT_THAT(c.After(seconds(600)), IsEmpty()) << "neither a fault nor an end";
    EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
    EXPECT_THAT(c.campaign.OnJobOver(c.now, code), IsEmpty());
    const FaultRecord& record = c.campaign.records()[0];
    EXPECT_EQ(record.state, code == 0 ? State::kAnswered : State::kUnanswered);
    EXPECT_EQ(record.answered_at - record.begun_at, seconds(1));
    EXPECT_EQ(c.campaign.records()[1].state, State::kPlanned);
  }
}

TEST(CampaignEndTest, AnInterruptionIsNoAnswerOfACommandThatGoesOn) {
  CampaignCase c(OptionsFor({KillWorker(seconds(1))}));
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1", kNewWorld);
  c.campaign.OnJobGone(c.now);
  EXPECT_THAT(c.campaign.Stop(), IsEmpty());
  c.campaign.OnJobOver(c.now, 143);
  EXPECT_EQ(c.campaign.records()[0].state, State::kOver);
}

}  // namespace
}  // namespace fsdprun::chaos
