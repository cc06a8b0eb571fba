#include "worker/run/resume.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun::worker {
namespace {

TEST(ResumeHintTest, NamesWhatElseMakesOtherStateOfAnOptimizer) {
  EXPECT_EQ(HintAt("it lacks model.norm.weight"), "");
  EXPECT_EQ(HintAt("it lacks optim.state.norm.weight.exp_avg"),
            "; was it trained with another optimizer.name?");
  EXPECT_EQ(HintAt("it lacks optim.state.norm.weight.momentum_buffer"),
            "; was it trained with another optimizer.name, or without optimizer.momentum?");
}

}  // namespace
}  // namespace fsdprun::worker
