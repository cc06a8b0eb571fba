#include "fsdpctl/top/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "fsdpctl/top/job_pin.h"
#include "tests/unit/fsdpctl/top/shown_job.h"

namespace fsdprun::top {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;

class LinkTest : public ::testing::Test {
 protected:
  LinkTest() {
    link_.Asked(now_);
    link_.Answered(status_, now_);
  }

  Link link_;
  v1::JobStatus status_ = ShownJob(1, 4);
  MonoTime now_{seconds(100)};
};

TEST_F(LinkTest, SilenceIsToldAndThenAskedAnew) {
  EXPECT_EQ(link_.Trouble(now_ + seconds(5)), "");
  EXPECT_EQ(link_.Trouble(now_ + seconds(6)), "no answer of the coordinator for 6.0s");
  EXPECT_FALSE(link_.IsStuck(now_ + seconds(25)));
  EXPECT_TRUE(link_.IsStuck(now_ + seconds(26)));
  EXPECT_EQ(link_.LastWords(now_ + seconds(6)),
            "job run7: no answer of the coordinator for 6.0s; before that: generation 2, running: "
            "all workers run");
  link_.Asked(now_ + seconds(27));
  EXPECT_FALSE(link_.IsStuck(now_ + seconds(30)));
}

TEST_F(LinkTest, ManyWorkersAreAnsweredForLessOften) {
  status_.set_world_size(10'000);
  link_.Answered(status_, now_);
  EXPECT_EQ(link_.Trouble(now_ + seconds(14)), "");
  EXPECT_NE(link_.Trouble(now_ + seconds(16)), "");
}

TEST_F(LinkTest, ALostConnectionIsToldUntilThereIsAnAnswer) {
  link_.Ended(absl::UnavailableError("nobody answers"));
  EXPECT_EQ(link_.Trouble(now_), "connection lost, asking again: nobody answers");
  EXPECT_THAT(link_.LastWords(now_), HasSubstr("job run7: connection lost: nobody answers"));
  link_.Asked(now_ + seconds(1));
  EXPECT_NE(link_.Trouble(now_ + seconds(1)), "");
  link_.Answered(status_, now_ + seconds(2));
  EXPECT_EQ(link_.Trouble(now_ + seconds(2)), "");
  EXPECT_FALSE(link_.is_over());
  EXPECT_EQ(link_.LastWords(now_ + seconds(2)),
            "job run7 goes on: generation 2, running: all workers run");
}

TEST_F(LinkTest, TheEndOfTheJobIsNoLoss) {
  status_.set_phase("finished");
  status_.set_exit_code(3);
  link_.Answered(status_, now_);
  EXPECT_TRUE(link_.is_over());
  link_.Ended(absl::OkStatus());
  EXPECT_EQ(link_.Trouble(now_ + minutes(1)), "");
  EXPECT_FALSE(link_.IsStuck(now_ + minutes(1)));
  EXPECT_EQ(link_.LastWords(now_), "job run7 ended with exit code 3");
}

TEST_F(LinkTest, WhoKnewTheExitCodeKnowsTheEnd) {
  status_.set_phase("releasing");
  status_.set_exit_code(0);
  link_.Answered(status_, now_);
  EXPECT_FALSE(link_.is_over());
  link_.Ended(absl::UnavailableError("gone"));
  EXPECT_TRUE(link_.is_over());
  EXPECT_EQ(link_.LastWords(now_), "job run7 ended with exit code 0");
}

TEST_F(LinkTest, SilenceIsThatOfTheJobWhoeverAsksIt) {
  link_.Asked(now_ + minutes(10));
  EXPECT_EQ(link_.Trouble(now_ + minutes(10)), "no answer of the coordinator for 10m00s");
  EXPECT_FALSE(link_.IsStuck(now_ + minutes(10)));
  EXPECT_EQ(link_.Since(now_ + minutes(10)), minutes(10));
}

TEST_F(LinkTest, WhoIsNotTheJobIsTold) {
  link_.Refused("another job runs");
  link_.Ended(absl::CancelledError("by who watches"));
  EXPECT_EQ(link_.Trouble(now_), "another job runs");
  link_.Ended(absl::UnavailableError("nobody answers"));
  EXPECT_EQ(link_.Trouble(now_), "connection lost, asking again: nobody answers");
  link_.Answered(status_, now_);
  link_.Ended(absl::CancelledError("by who watches"));
  EXPECT_EQ(link_.Trouble(now_), "connection lost, asking again: the coordinator did not answer");
}

v1::JobStatus Told(const std::string& run_id, int64_t coordinator, const std::string& launch_id) {
  v1::JobStatus status = ShownJob(1, 4);
  status.set_job(run_id);
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
}  // namespace fsdprun::top
