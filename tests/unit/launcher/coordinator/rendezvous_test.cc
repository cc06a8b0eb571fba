#include "launcher/coordinator/rendezvous.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Verdict = Rendezvous::Verdict;

/// Two to four nodes, which may take 600 s to come; the last call lasts 30 s.
class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    spec_.min_nodes = 2;
    spec_.max_nodes = 4;
    rendezvous_.Begin(Duration{}, now_);
  }
  Verdict Consider(int eligible, Duration at = {}) {
    return rendezvous_.Consider({eligible, awaits_leases_, is_first_}, now_ + at);
  }

  JobSpec spec_;
  Rendezvous rendezvous_{spec_};
  bool awaits_leases_ = false;
  bool is_first_ = true;
  const MonoTime now_{std::chrono::hours(1)};
};

TEST_F(RendezvousTest, NobodyIsWaitedForOnceAllAreThere) {
  EXPECT_EQ(Consider(1), Verdict::kTooFew);
  awaits_leases_ = true;
  EXPECT_EQ(Consider(4), Verdict::kComplete);
}

TEST_F(RendezvousTest, LastCallEndsOnceAndIsNotPutOffByArrivals) {
  EXPECT_EQ(Consider(2), Verdict::kLastCall);
  EXPECT_EQ(Consider(3, seconds(20)), Verdict::kLastCall);
  EXPECT_EQ(rendezvous_.NextWake(), now_ + seconds(30));
  EXPECT_FALSE(rendezvous_.EndLastCallIfDue(now_ + seconds(29)));
  EXPECT_TRUE(rendezvous_.EndLastCallIfDue(now_ + seconds(30)));
  EXPECT_FALSE(rendezvous_.EndLastCallIfDue(now_ + seconds(31)));
  EXPECT_EQ(Consider(3, seconds(31)), Verdict::kComplete);
}

TEST_F(RendezvousTest, OnlyTheFirstWorldHasALastCall) {
  is_first_ = false;
  EXPECT_EQ(Consider(2), Verdict::kComplete);
}

TEST_F(RendezvousTest, SilentNodesAreWaitedForBeforeTheLastCall) {
  awaits_leases_ = true;
  EXPECT_EQ(Consider(3), Verdict::kAwaitLeases);
  EXPECT_EQ(rendezvous_.NextWake(), rendezvous_.join_deadline());
}

TEST_F(RendezvousTest, LossOfEnoughBeginsTheWaitAndTheLastCallAnew) {
  Consider(2);
  rendezvous_.EndLastCallIfDue(now_ + seconds(30));
  EXPECT_EQ(Consider(1, seconds(40)), Verdict::kTooFew);
  EXPECT_EQ(rendezvous_.join_deadline(), now_ + seconds(640));
  EXPECT_EQ(Consider(1, seconds(50)), Verdict::kTooFew);
  EXPECT_EQ(rendezvous_.join_deadline(), now_ + seconds(640));
  EXPECT_EQ(Consider(2, seconds(60)), Verdict::kLastCall);
  EXPECT_EQ(rendezvous_.NextWake(), now_ + seconds(90));
}

TEST_F(RendezvousTest, AfterTheJoinTimeoutNobodyIsWaitedForUntilThereAreTooFew) {
  awaits_leases_ = true;
  EXPECT_TRUE(rendezvous_.EndJoining());
  EXPECT_FALSE(rendezvous_.EndJoining());
  EXPECT_EQ(Consider(2), Verdict::kComplete);
  EXPECT_EQ(Consider(1), Verdict::kTooFew);
  EXPECT_EQ(Consider(2), Verdict::kAwaitLeases);
}

TEST_F(RendezvousTest, JoinTimeoutBeginsBehindThePause) {
  rendezvous_.EndJoining();
  rendezvous_.Begin(seconds(5), now_);
  EXPECT_TRUE(rendezvous_.is_pausing());
  EXPECT_EQ(rendezvous_.join_deadline(), now_ + seconds(605));
  EXPECT_TRUE(rendezvous_.EndJoining());
  EXPECT_FALSE(rendezvous_.EndPauseIfDue(now_ + milliseconds(4999)));
  EXPECT_TRUE(rendezvous_.EndPauseIfDue(now_ + seconds(5)));
  EXPECT_FALSE(rendezvous_.is_pausing());
}

TEST_F(RendezvousTest, FormedWorldEndsAllWaits) {
  Consider(2);
  rendezvous_.End();
  EXPECT_EQ(rendezvous_.NextWake(), MonoTime::max());
  EXPECT_EQ(Consider(1, seconds(10)), Verdict::kTooFew);
  EXPECT_EQ(rendezvous_.join_deadline(), MonoTime::max());
}

TEST_F(RendezvousTest, StallPutsTheWaitsForOthersOffAndNotThePause) {
  rendezvous_.Begin(seconds(5), now_);
  Consider(2);
  rendezvous_.PutOff(seconds(10));
  EXPECT_EQ(rendezvous_.NextWake(), now_ + seconds(5));
  rendezvous_.EndPauseIfDue(now_ + seconds(5));
  EXPECT_EQ(rendezvous_.NextWake(), now_ + seconds(40));
  EXPECT_EQ(rendezvous_.join_deadline(), now_ + seconds(615));
  rendezvous_.End();
  rendezvous_.PutOff(seconds(10));
  EXPECT_EQ(rendezvous_.NextWake(), MonoTime::max());
}

TEST(GrowthTest, EachArrivalPutsItOffUpToALimit) {
  JobSpec spec;
  spec.growth_settle = milliseconds(200);
  spec.growth_settle_max = milliseconds(600);
  Growth growth(spec);
  const MonoTime start{std::chrono::hours(1)};
  growth.Await(start);
  EXPECT_EQ(growth.due(), start + milliseconds(200));
  growth.Await(start + milliseconds(150));
  EXPECT_EQ(growth.due(), start + milliseconds(350));
  growth.Await(start + milliseconds(500));
  EXPECT_EQ(growth.due(), start + milliseconds(600));
  growth.Cancel();
  EXPECT_EQ(growth.due(), MonoTime::max());
  growth.Await(start + milliseconds(900));
  EXPECT_EQ(growth.due(), start + milliseconds(1100));
}

}  // namespace
}  // namespace fsdprun
