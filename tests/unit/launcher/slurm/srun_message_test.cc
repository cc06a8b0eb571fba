#include "launcher/slurm/srun_message.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(SrunMessageTest, TasksThatHaveEnded) {
  EXPECT_EQ(ReadTasksEnded("srun: error: node2: task 1: Exited with exit code 2"),
            (SrunTasksEnded{{"node2"}, "Exited with exit code 2"}));
  EXPECT_EQ(ReadTasksEnded("srun: error: node[2-3]: tasks 1-2: Killed"),
            (SrunTasksEnded{{"node2", "node3"}, "Killed"}));
  for (const char* line :
       {"", "srun: error: ", "srun: error: Node failure on node2", "node2: task 1: Killed",
        "srun: error: n[: task 1: Killed", "srun: launch/slurm: task 1: Killed"}) {
    EXPECT_EQ(ReadTasksEnded(line), std::nullopt) << line;
  }
}

TEST(SrunMessageTest, ErrorsOfSrunItself) {
  EXPECT_EQ(ReadSrunError("srun: error: Unable to create step for job 6: Invalid account\n"),
            "Unable to create step for job 6: Invalid account");
  EXPECT_EQ(ReadSrunError("srun: fatal: No command given"), "No command given");
  EXPECT_EQ(ReadSrunError("srun: Force Terminated StepId=10.0"), "");
  EXPECT_EQ(ReadSrunError("worker: srun: error: x"), "");
}

}  // namespace
}  // namespace fsdprun
