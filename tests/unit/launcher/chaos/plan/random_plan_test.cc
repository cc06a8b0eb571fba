#include "launcher/chaos/plan/random_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

RandomPlanOptions AllOf(Form form) {
  return {.seed = 7,
          .faults = 500,
          .every = seconds(2),
          .kinds = {std::begin(kFaultKinds), std::end(kFaultKinds)},
          .targets = {std::begin(kFaultTargets), std::end(kFaultTargets)},
          .powers = {.form = form, .names_targets = true, .has_fill = true, .has_corrupt = true},
          .length = {milliseconds(200), seconds(5)},
          .latency = {milliseconds(50), milliseconds(500)}};
}

std::set<std::pair<FaultKind, FaultTarget>> WhatIsIn(const FaultPlan& plan) {
  std::set<std::pair<FaultKind, FaultTarget>> found;
  for (const PlannedFault& fault : plan.faults) {
    found.emplace(fault.kind, fault.target);
  }
  return found;
}

TEST(RandomPlanTest, TheSameSeedIsTheSamePlan) {
  RandomPlanOptions options = AllOf(Form::kNodes);
  const FaultPlan plan = MakeRandomPlan(options);
  EXPECT_EQ(MakeRandomPlan(options), plan);
  options.seed = 8;
  EXPECT_NE(MakeRandomPlan(options), plan);
}

// On another machine, and with another release, too: a seed in somebody's report is to mean the
// same.
TEST(RandomPlanTest, ASeedMeansTheSameEverywhere) {
  const FaultPlan plan = MakeRandomPlan(AllOf(Form::kNodes));
  EXPECT_EQ(TextOf(plan.faults[0]), "kill agent");
  EXPECT_EQ(plan.faults[0].at, milliseconds(2542));
}

TEST(RandomPlanTest, EverythingThatCanBeDoneComes) {
  using K = FaultKind;
  using T = FaultTarget;
  const auto found = WhatIsIn(MakeRandomPlan(AllOf(Form::kNodes)));
  EXPECT_THAT(found, ::testing::UnorderedElementsAre(
                         std::pair(K::kKill, T::kWorker), std::pair(K::kKill, T::kKeeper),
                         std::pair(K::kKill, T::kAgent), std::pair(K::kKill, T::kCoordinator),
                         std::pair(K::kStop, T::kWorker), std::pair(K::kStop, T::kAgent),
                         std::pair(K::kStop, T::kCoordinator), std::pair(K::kPartition, T::kAgent),
                         std::pair(K::kDelay, T::kAgent), std::pair(K::kFill, T::kNone),
                         std::pair(K::kCorrupt, T::kNone)));
}

TEST(RandomPlanTest, WhatCannotBeDoneIsLeftOut) {
  RandomPlanOptions options = AllOf(Form::kOneLauncher);
  options.powers.has_fill = false;
  for (const auto& [kind, target] : WhatIsIn(MakeRandomPlan(options))) {
    EXPECT_TRUE(kind == FaultKind::kKill || kind == FaultKind::kStop ||
                kind == FaultKind::kCorrupt);
    EXPECT_FALSE(kind == FaultKind::kKill && target == FaultTarget::kAgent);
  }
  options.kinds = {FaultKind::kPartition};
  EXPECT_TRUE(MakeRandomPlan(options).faults.empty());
}

TEST(RandomPlanTest, TimesAreWithinWhatWasAskedFor) {
  for (const PlannedFault& fault : MakeRandomPlan(AllOf(Form::kNodes)).faults) {
    EXPECT_GE(fault.at, seconds(1));
    EXPECT_LE(fault.at, seconds(3));
    if (Lasts(fault.kind)) {
      EXPECT_GE(fault.length, milliseconds(200));
      EXPECT_LE(fault.length, seconds(5));
    } else {
      EXPECT_EQ(fault.length, Duration::zero());
    }
  }
}

}  // namespace
}  // namespace fsdprun::chaos
