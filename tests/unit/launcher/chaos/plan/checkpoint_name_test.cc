#include "launcher/chaos/plan/checkpoint_name.h"

#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

TEST(CheckpointNameTest, OnlyCompleteCheckpointsHaveANumber) {
  EXPECT_EQ(CheckpointNumber("step-12"), 12);
  EXPECT_EQ(CheckpointNumber("checkpoint_500"), 500);
  EXPECT_EQ(CheckpointNumber("epoch3.pt"), 3);
  for (const char* name : {"latest", "step-12.tmp-3-5", "step-12.old-7", ".step-12", "12", "claim",
                           "step-3-of-9", "step-99999999999999999999", ""}) {
    EXPECT_EQ(CheckpointNumber(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace fsdprun::chaos
