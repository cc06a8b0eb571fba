#include "launcher/slurm/first_look.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>

namespace fsdprun {
namespace {

TEST(FirstLookTest, LaunchersOfOneStepAreSpread) {
  constexpr int kTasks = 500;
  std::array<int, 12> in_second{};
  for (int task = 0; task < kTasks; ++task) {
    const Duration look =
        FirstLook("7", {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", std::to_string(task)}});
    ASSERT_GE(look, std::chrono::seconds(2));
    ASSERT_LT(look, std::chrono::seconds(12));
    ++in_second[static_cast<size_t>(look / std::chrono::seconds(1))];
  }
  EXPECT_LT(*std::max_element(in_second.begin(), in_second.end()), 150);
}

TEST(FirstLookTest, FollowsFromJobStepAndTask) {
  const Environment environment{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}};
  const Duration look = FirstLook("7", environment);
  EXPECT_EQ(FirstLook("7", environment), look);
  EXPECT_NE(FirstLook("8", environment), look);
  EXPECT_NE(FirstLook("7", {{"SLURM_STEP_ID", "1"}, {"SLURM_PROCID", "1"}}), look);
  EXPECT_NE(FirstLook("7", {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "2"}}), look);
  EXPECT_EQ(FirstLook("7_1", {}), FirstLook("7_1", {{"PATH", "/bin"}}));
}

}  // namespace
}  // namespace fsdprun
