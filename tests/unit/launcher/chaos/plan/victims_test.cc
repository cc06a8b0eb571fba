#include "launcher/chaos/plan/victims.h"

#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

const std::vector<JobProcess> kProcesses = {
    {.role = FaultTarget::kWorker, .pid = 30, .number = 2},
    {.role = FaultTarget::kWorker, .pid = 40, .number = 0},
    {.role = FaultTarget::kAgent, .pid = 10, .number = 1},
    {.role = FaultTarget::kWorker, .pid = 50, .number = 1},
};

TEST(VictimsTest, ThePickChoosesInOrderOfNumber) {
  for (uint64_t pick = 0; pick < 6; ++pick) {
    const auto victim = ChooseVictim(kProcesses, {.target = FaultTarget::kWorker, .pick = pick});
    ASSERT_TRUE(victim.has_value());
    EXPECT_EQ(victim->number, static_cast<int>(pick % 3));
  }
}

TEST(VictimsTest, WhoIsNamedIsMeant) {
  const auto victim =
      ChooseVictim(kProcesses, {.target = FaultTarget::kWorker, .number = 2, .pick = 1});
  ASSERT_TRUE(victim.has_value());
  EXPECT_EQ(victim->pid, 30);
  EXPECT_EQ(ChooseVictim(kProcesses, {.target = FaultTarget::kWorker, .number = 3}), std::nullopt);
}

TEST(VictimsTest, NobodyOfARoleIsNobody) {
  EXPECT_EQ(ChooseVictim(kProcesses, {.target = FaultTarget::kKeeper}), std::nullopt);
  EXPECT_EQ(ChooseVictim({}, {.target = FaultTarget::kWorker}), std::nullopt);
}

TEST(VictimsTest, NumbersAreThoseThatThereAre) {
  EXPECT_EQ(ChooseNumber(2, {.pick = 5}), 1);
  EXPECT_EQ(ChooseNumber(2, {.number = 0, .pick = 5}), 0);
  EXPECT_EQ(ChooseNumber(2, {.number = 2}), std::nullopt);
  EXPECT_EQ(ChooseNumber(0, {}), std::nullopt);
}

}  // namespace
}  // namespace fsdprun::chaos
