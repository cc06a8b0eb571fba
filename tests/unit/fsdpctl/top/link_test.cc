#include "fsdpctl/top/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

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
  link_.Ended(absl::OkStatus());
  EXPECT_TRUE(link_.is_over());
  EXPECT_EQ(link_.LastWords(now_), "job run7 ended with exit code 0");
}

// Its successor may take minutes for the workers that are left.
TEST_F(LinkTest, WhoBreaksOffWhileTheJobEndsMayHaveASuccessor) {
  status_.set_phase("stopping");
  status_.set_exit_code(1);
  link_.Answered(status_, now_);
  link_.Ended(absl::UnavailableError("gone"));
  EXPECT_FALSE(link_.is_over());
  EXPECT_EQ(link_.Trouble(now_), "connection lost, asking again: gone");
  link_.Answered(status_, now_ + seconds(1));
  EXPECT_EQ(link_.Trouble(now_ + seconds(1)), "");
  link_.Ended(absl::UnavailableError("gone"));
  EXPECT_FALSE(link_.is_over());
  link_.Ended(absl::NotFoundError("no job here is called '100'"));
  EXPECT_FALSE(link_.is_over());
  link_.Ended(absl::NotFoundError("no job here is called 'run7'"));
  EXPECT_TRUE(link_.is_over());
  EXPECT_EQ(link_.LastWords(now_ + seconds(2)), "job run7 ended with exit code 1");
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

}  // namespace
}  // namespace fsdprun::top
