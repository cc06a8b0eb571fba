#include "fsdpctl/jobs/job_pin.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

v1::JobStatus Told(const std::string& run_id, int64_t coordinator, const std::string& launch_id) {
  v1::JobStatus status;
  status.set_job(run_id);
  status.mutable_coordinator()->set_node("node0");
  status.mutable_coordinator()->set_pid(coordinator);
  status.set_launch_id(launch_id);
  return status;
}

TEST(JobPinTest, TheProcessThatHasAnsweredIsAskedAgain) {
  JobPin pin("run7", /*is_here=*/true);
  EXPECT_EQ(pin.name(), "run7");
  EXPECT_TRUE(pin.Takes(Told("run7", 100, "a")));
  EXPECT_EQ(pin.name(), "100");  // Whoever else has that id.
  pin.NotFound();
  EXPECT_EQ(pin.name(), "run7");
  EXPECT_EQ(pin.answerer(), "100");
  EXPECT_TRUE(pin.Takes(Told("run7", 200, "a")));
  EXPECT_EQ(pin.name(), "200");
  EXPECT_EQ(pin.answerer(), "200");
}

TEST(JobPinTest, OfAnotherMachineItIsAskedByItsRunId) {
  JobPin pin("run7", /*is_here=*/false);
  EXPECT_TRUE(pin.Takes(Told("run7", 100, "a")));
  EXPECT_EQ(pin.name(), "run7");
}

TEST(JobPinTest, AnotherJobIsNotTaken) {
  JobPin pin("100", /*is_here=*/true);
  EXPECT_TRUE(pin.Takes(Told("none", 100, "a")));
  EXPECT_FALSE(pin.Takes(Told("run8", 200, "a")));
  const v1::JobStatus other = Told("none", 200, "b");
  EXPECT_FALSE(pin.Takes(other));
  EXPECT_EQ(pin.WhyNot(other),
            "the job's coordinator (pid 100 on node0) is gone; pid 200 on node0 runs another job "
            "of id 'none'");
  EXPECT_FALSE(pin.Takes(Told("none", 100, "c")));  // The pid is used again.
  EXPECT_TRUE(pin.Takes(Told("none", 300, "a")));
}

}  // namespace
}  // namespace fsdprun
