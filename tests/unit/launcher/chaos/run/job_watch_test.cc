#include "launcher/chaos/run/job_watch.h"

#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

JobEntry Entry(const char* run_id, int64_t pid, int64_t began_ms) {
  return {.run_id = run_id, .pid = pid, .began_ms = began_ms};
}

int64_t PidOf(const std::optional<JobEntry>& job) { return job.has_value() ? job->pid : 0; }

TEST(JobFollowerTest, AnotherJobOfTheSameNameIsNotTheJob) {
  JobFollower follower(Entry("none", 10, 1000));
  EXPECT_EQ(PidOf(follower.Find({Entry("none", 10, 1000), Entry("none", 11, 1001)})), 10);
}

TEST(JobFollowerTest, ACoordinatorThatIsStartedAgainIsFollowed) {
  JobFollower follower(Entry("run7", 10, 1000));
  EXPECT_EQ(PidOf(follower.Find({})), 0);
  EXPECT_EQ(PidOf(follower.Find({Entry("other", 12, 2000), Entry("run7", 13, 2001)})), 13);
  EXPECT_EQ(PidOf(follower.Find({Entry("run7", 13, 2001), Entry("run7", 14, 3000)})), 13);
}

TEST(JobFollowerTest, APidThatIsUsedAgainIsAnotherCoordinator) {
  JobFollower follower(Entry("run7", 10, 1000));
  EXPECT_EQ(PidOf(follower.Find({Entry("other", 10, 2000)})), 0);
}

TEST(JobFollowerTest, OfSeveralNobodyKnowsWhichItIs) {
  JobFollower follower(Entry("none", 10, 1000));
  EXPECT_EQ(PidOf(follower.Find({Entry("none", 11, 900)})), 0);
  EXPECT_EQ(PidOf(follower.Find({Entry("none", 12, 2000), Entry("none", 13, 2001)})), 0);
  EXPECT_EQ(PidOf(follower.Find({Entry("none", 13, 2001)})), 13);
}

}  // namespace
}  // namespace fsdprun::chaos
