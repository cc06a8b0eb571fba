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

TEST(CheckpointNameTest, WhatIsBeingWrittenOrRemovedHasNone) {
  for (const char* name :
       {"step-12.tmp", "step-12.partial", "tmp-checkpoint-500", "step_part_7", "step-12.OLD",
        "temp_step3.pt", "epoch3.pt.incomplete", "bak-3", "new-step-4", "step-5.lock"}) {
    EXPECT_EQ(CheckpointNumber(name), std::nullopt) << name;
  }
  EXPECT_EQ(CheckpointNumber("folder-12"), 12);
  EXPECT_EQ(CheckpointNumber("newest-3.pt"), 3);
}

}  // namespace
}  // namespace fsdprun::chaos
