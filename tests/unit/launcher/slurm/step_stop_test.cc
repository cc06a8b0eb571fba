#include "launcher/slurm/step_stop.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using Action = StepStop::Action;

constexpr MonoTime kStart = MonoTime(std::chrono::hours(1));

TEST(StepStopTest, NothingIsDueBeforeTheBegin) {
  StepStop stop;
  EXPECT_EQ(stop.Next(kStart), Action::kNone);
  EXPECT_EQ(stop.due(), MonoTime::max());
  EXPECT_FALSE(stop.has_begun());
}

TEST(StepStopTest, SrunThatDoesNotEndIsKilledAndThenLeft) {
  StepStop stop;
  stop.Begin(kStart);
  MonoTime now = kStart;
  for (const Action action : {Action::kTerminate, Action::kKill}) {
    EXPECT_EQ(stop.Next(now), action);
    EXPECT_EQ(stop.Next(now), Action::kNone);
    EXPECT_EQ(stop.due(), now + StepStop::kPatience);
    EXPECT_EQ(stop.Next(stop.due() - Duration(1)), Action::kNone);
    now = stop.due();
  }
  EXPECT_EQ(stop.Next(now), Action::kLeave);
  EXPECT_EQ(stop.due(), MonoTime::max());
  stop.Hurry(now);
  EXPECT_EQ(stop.Next(now + std::chrono::hours(1)), Action::kNone);
}

TEST(StepStopTest, SecondReasonToEndItChangesNothing) {
  StepStop stop;
  stop.Begin(kStart);
  EXPECT_EQ(stop.Next(kStart), Action::kTerminate);
  stop.Begin(kStart + Duration(1));
  EXPECT_EQ(stop.Next(kStart + Duration(1)), Action::kNone);
  EXPECT_EQ(stop.due(), kStart + StepStop::kPatience);
}

TEST(StepStopTest, OperatorWhoSignalsAgainWaitsForNothing) {
  StepStop stop;
  for (const Action action : {Action::kTerminate, Action::kKill, Action::kLeave}) {
    stop.Hurry(kStart);
    EXPECT_EQ(stop.Next(kStart), action);
  }
}

}  // namespace
}  // namespace fsdprun
