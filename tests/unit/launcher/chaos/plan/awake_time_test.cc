#include "launcher/chaos/plan/awake_time.h"

#include <gtest/gtest.h>

#include "tests/unit/launcher/chaos/plan/campaign_case.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr MonoTime kToldFirst{seconds(1000)};

TEST(AwakeTimeTest, WhatIsToldOftenIsTheTime) {
  AwakeTime time;
  for (MonoTime now = kToldFirst; now < kToldFirst + seconds(100); now += AwakeTime::kLongestStep) {
    EXPECT_EQ(time.Advance(now), Duration::zero());
    EXPECT_EQ(time.At(now), now);
  }
}

TEST(AwakeTimeTest, SleepIsNoTime) {
  AwakeTime time;
  time.Advance(kToldFirst);
  EXPECT_EQ(time.Advance(kToldFirst + seconds(60)), seconds(59));
  EXPECT_EQ(time.At(kToldFirst + seconds(60)), kToldFirst + seconds(1));
  EXPECT_EQ(time.Advance(kToldFirst + milliseconds(60500)), Duration::zero());
  EXPECT_EQ(time.Advance(kToldFirst + seconds(70)), milliseconds(8500));
  EXPECT_EQ(time.At(kToldFirst + seconds(70)), kToldFirst + milliseconds(2500));
}

TEST(AwakeTimeTest, WhatWasBeforeStaysBefore) {
  AwakeTime time;
  time.Advance(kToldFirst);
  time.Advance(kToldFirst + seconds(60));
  EXPECT_EQ(time.At(kToldFirst - seconds(5)), kToldFirst - seconds(5));
  EXPECT_EQ(time.At(kToldFirst + milliseconds(900)), kToldFirst + milliseconds(900));
  EXPECT_EQ(time.At(kToldFirst + seconds(30)), kToldFirst + seconds(1)) << "when it fell asleep";
}

/// A campaign whose program sleeps for a minute, with a fault that is open, and an answer from
/// before that.
class SleepingCampaign {
 public:
  explicit SleepingCampaign(bool counts_sleep)
      : c_(OptionsFor({KillWorker(seconds(0))})), counts_sleep_(counts_sleep) {
    Step(seconds(0));
    c_.campaign.OnBegun(0, Now(), "worker 1", kNewWorld);
    c_.view.phase = "rendezvous";
    Step(milliseconds(20));
    mono_ += seconds(61);
    c_.campaign.Step(Now(), c_.view);
  }
  Campaign::End end() const { return c_.campaign.end(); }
  /// Once it is asked again, the job has long been running.
  void AskAgain() {
    c_.view.phase = "running";
    c_.view.generation = 2;
    Step(milliseconds(100));
    for (int i = 0; i < 5; ++i) {
      Step(milliseconds(900));
    }
  }

 private:
  MonoTime Now() {
    awake_.Advance(mono_);
    return counts_sleep_ ? mono_ : awake_.At(mono_);
  }
  void Step(Duration later) {
    mono_ += later;
    c_.view.asked_at = Now();
    c_.campaign.Step(Now(), c_.view);
  }

  CampaignCase c_;
  AwakeTime awake_;
  MonoTime mono_ = kToldFirst;
  const bool counts_sleep_;
};

TEST(AwakeTimeTest, ACampaignThatSleepsDoesNotJudgeByWhatItHasNotSeen) {
  SleepingCampaign campaign(/*counts_sleep=*/false);
  EXPECT_EQ(campaign.end(), Campaign::End::kNotYet);
  campaign.AskAgain();
  EXPECT_EQ(campaign.end(), Campaign::End::kDone);
  EXPECT_EQ(SleepingCampaign(/*counts_sleep=*/true).end(), Campaign::End::kNotSurvived)
      << "as it would by the clock";
}

}  // namespace
}  // namespace fsdprun::chaos
