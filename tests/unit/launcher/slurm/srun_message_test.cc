#include "launcher/slurm/srun_message.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(SrunMessageTest, TasksThatHaveEnded) {
  EXPECT_EQ(ReadTasksEnded("srun: error: node2: task 1: Exited with exit code 2"),
            (SrunTasksEnded{{"node2"}, "Exited with exit code 2"}));
  EXPECT_EQ(ReadTasksEnded("srun: error: node[2-3]: tasks 1-2: Killed"),
            (SrunTasksEnded{{"node2", "node3"}, "Killed"}));
  EXPECT_EQ(ReadTasksEnded("srun: error: Node failure on node[2,4]"),
            (SrunTasksEnded{{"node2", "node4"}, "Node failure on node[2,4]"}));
  for (const char* line :
       {"", "srun: error: ", "srun: error: Node failure on ", "srun: error: Node failure on n[",
        "Node failure on node2", "node2: task 1: Killed", "srun: error: n[: task 1: Killed",
        "srun: launch/slurm: task 1: Killed"}) {
    EXPECT_EQ(ReadTasksEnded(line), std::nullopt) << line;
  }
}

TEST(SrunMessageTest, AdviceNamesTheVariable) {
  EXPECT_NE(StepAdvice("Unable to confirm allocation for job 9: Invalid job id specified", "9")
                .find("SLURM_JOB_ID=9, is over"),
            std::string::npos);
  EXPECT_NE(StepAdvice("Unable to create step for job 9: More processors requested", "9")
                .find("--srun-args"),
            std::string::npos);
  EXPECT_NE(
      StepAdvice("Unable to create step for job 9: Socket timed out on send/recv operation", "9")
          .find("scontrol ping"),
      std::string::npos);
}

TEST(SrunMessageTest, ControllerThatIsAwayIsNoRefusal) {
  EXPECT_TRUE(IsControllerAway(
      "Unable to confirm allocation for job 9: Unable to contact slurm controller (connect "
      "failure)"));
  EXPECT_TRUE(IsControllerAway("Slurm backup controller in standby mode"));
  EXPECT_TRUE(
      IsControllerAway("Unable to create step for job 9: Zero Bytes were transmitted or received"));
  for (const char* error :
       {"", "Unable to confirm allocation for job 9: Invalid job id specified",
        "node2: task 1: Exited with exit code 2", "Unable to create step for job 9: Job expired"}) {
    EXPECT_FALSE(IsControllerAway(error)) << error;
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
