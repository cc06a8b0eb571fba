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

// f(p) at p = 0, 1/4, 1/2 and 1 of each shape, with 1 above and 0.1 at the end.
TEST(ScheduleTest, WsdIsConstantUntilItsDecay) {
  const auto wsd = [](DecayShape shape) {
    return Schedule{ScheduleKind::kWsd, 2, 0.1, 20, 8, shape};
  };
  for (const DecayShape shape :
       {DecayShape::kLinear, DecayShape::kCosine, DecayShape::kOneMinusSqrt}) {
    const Schedule schedule = wsd(shape);
    EXPECT_DOUBLE_EQ(schedule.Factor(0), 0.5);
    EXPECT_DOUBLE_EQ(schedule.Factor(2), 1.0);
    EXPECT_DOUBLE_EQ(schedule.Factor(12), 1.0);  // p = 0
    EXPECT_DOUBLE_EQ(schedule.Factor(20), 0.1);
    EXPECT_DOUBLE_EQ(schedule.Factor(99), 0.1);
  }
  EXPECT_DOUBLE_EQ(wsd(DecayShape::kLinear).Factor(14), 1 - 0.9 * 0.25);
  EXPECT_DOUBLE_EQ(wsd(DecayShape::kLinear).Factor(16), 0.55);
  EXPECT_NEAR(wsd(DecayShape::kCosine).Factor(14), 0.1 + 0.45 * (1 + 0.70710678118654752), 1e-12);
  EXPECT_NEAR(wsd(DecayShape::kCosine).Factor(16), 0.55, 1e-12);
  EXPECT_DOUBLE_EQ(wsd(DecayShape::kOneMinusSqrt).Factor(14), 0.1 + 0.9 * 0.5);
  EXPECT_NEAR(wsd(DecayShape::kOneMinusSqrt).Factor(16), 0.1 + 0.9 * (1 - 0.70710678118654752),
              1e-12);
}

// So a run may go on with other steps, if its decay has not begun.
TEST(ScheduleTest, WsdBeforeItsDecayIsTheSameWithOtherSteps) {
  const Schedule shorter{ScheduleKind::kWsd, 5, 0, 100, 10, DecayShape::kCosine};
  const Schedule longer{ScheduleKind::kWsd, 5, 0, 1000, 100, DecayShape::kCosine};
  for (int64_t step = 0; step <= 90; ++step) {
    EXPECT_EQ(shorter.Factor(step), longer.Factor(step)) << step;
  }
  EXPECT_LT(shorter.Factor(91), 1.0);
}

TEST(ScheduleTest, WsdWithoutDecayIsConstant) {
  const Schedule schedule{ScheduleKind::kWsd, 0, 0.1, 20, 0, DecayShape::kLinear};
  EXPECT_EQ(schedule.Factor(19), 1.0);
  EXPECT_EQ(DecaySteps(20, 0), 0);
  EXPECT_EQ(DecaySteps(15, 0.1), 2);  // rounded
}

}  // namespace
}  // namespace fsdprun::worker
