#include "worker/config/schedule.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

TEST(ScheduleTest, WarmUpEndsAtThePeak) {
  const Schedule schedule{ScheduleKind::kCosine, 4, 0.1, 20};
  EXPECT_DOUBLE_EQ(schedule.Factor(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.Factor(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.Factor(4), 1.0);
}

TEST(ScheduleTest, ConstantStays) {
  const Schedule schedule{ScheduleKind::kConstant, 0, 0.5, 10};
  EXPECT_EQ(schedule.Factor(0), 1.0);
  EXPECT_EQ(schedule.Factor(1'000'000), 1.0);
}

TEST(ScheduleTest, LinearFallsToTheMinimumAndStays) {
  const Schedule schedule{ScheduleKind::kLinear, 2, 0.2, 12};
  EXPECT_DOUBLE_EQ(schedule.Factor(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.Factor(7), 0.6);
  EXPECT_DOUBLE_EQ(schedule.Factor(12), 0.2);
  EXPECT_DOUBLE_EQ(schedule.Factor(99), 0.2);
}

TEST(ScheduleTest, CosineIsHalfWayInTheMiddleAndNeverRises) {
  const Schedule schedule{ScheduleKind::kCosine, 0, 0.1, 100};
  EXPECT_DOUBLE_EQ(schedule.Factor(0), 1.0);
  EXPECT_NEAR(schedule.Factor(50), 0.55, 1e-12);
  EXPECT_NEAR(schedule.Factor(100), 0.1, 1e-12);
  for (int64_t step = 0; step < 100; ++step) {
    EXPECT_GE(schedule.Factor(step), schedule.Factor(step + 1));
  }
}

TEST(ScheduleTest, WarmUpLongerThanTheRunIsStillARamp) {
  const Schedule schedule{ScheduleKind::kLinear, 100, 0, 10};
  EXPECT_DOUBLE_EQ(schedule.Factor(9), 0.1);
  EXPECT_DOUBLE_EQ(schedule.Factor(100), 1.0);
}

}  // namespace
}  // namespace fsdprun::worker
