#include "launcher/chaos/run/job_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

JobEntry Entry(const char* run_id, int64_t pid, int64_t began_ms) {
  return {.run_id = run_id, .pid = pid, .began_ms = began_ms};
}

v1::JobStatus Answer(const JobEntry& job, const std::string& launch_id) {
  v1::JobStatus status;
  status.set_job(job.run_id);
  status.set_launch_id(launch_id);
  status.mutable_coordinator()->set_pid(job.pid);
  return status;
}

std::vector<int64_t> Pids(const std::vector<JobEntry>& jobs) {
  std::vector<int64_t> pids;
  for (const JobEntry& job : jobs) {
    pids.push_back(job.pid);
  }
  return pids;
}

const JobEntry kFirst = Entry("none", 10, 1000);

/// Its job has answered.
JobFollower Answered() {
  JobFollower follower(kFirst);
  EXPECT_TRUE(follower.Takes(kFirst, Answer(kFirst, "a")));
  return follower;
}

TEST(JobFollowerTest, AnotherJobOfTheSameNameIsNotTheJob) {
  JobFollower follower = Answered();
  const JobEntry other = Entry("none", 13, 2001);
  EXPECT_THAT(Pids(follower.WhomToAsk({kFirst, other})), ElementsAre(10));
  // Its coordinator is gone. The other one is asked once, since it may be its successor.
  EXPECT_THAT(Pids(follower.WhomToAsk({other})), ElementsAre(13));
  EXPECT_FALSE(follower.Takes(other, Answer(other, "b")));
  EXPECT_THAT(follower.WhomToAsk({other}), IsEmpty());
  EXPECT_FALSE(follower.IsThere({other}));
}

TEST(JobFollowerTest, ACoordinatorThatIsStartedAgainIsFollowed) {
  JobFollower follower = Answered();
  EXPECT_THAT(follower.WhomToAsk({}), IsEmpty());
  const JobEntry other = Entry("none", 12, 2000);
  const JobEntry successor = Entry("none", 13, 2001);
  const std::vector<JobEntry> jobs{Entry("none", 9, 900), other, successor,
                                   Entry("run8", 14, 2002)};
  EXPECT_THAT(Pids(follower.WhomToAsk(jobs)), ElementsAre(12, 13));
  EXPECT_FALSE(follower.Takes(other, Answer(other, "b")));
  EXPECT_TRUE(follower.Takes(successor, Answer(successor, "a")));
  EXPECT_THAT(Pids(follower.WhomToAsk(jobs)), ElementsAre(13));
  EXPECT_TRUE(follower.IsThere(jobs));
  EXPECT_FALSE(follower.IsReplaced(jobs));
}

TEST(JobFollowerTest, APidThatIsUsedAgainIsAnotherCoordinator) {
  JobFollower follower = Answered();
  EXPECT_THAT(follower.WhomToAsk({Entry("other", 10, 2000)}), IsEmpty());
  EXPECT_FALSE(follower.IsThere({Entry("other", 10, 2000)}));
}

TEST(JobFollowerTest, WhoHasNotAnsweredHasNoSuccessor) {
  const JobFollower follower(kFirst);
  EXPECT_THAT(Pids(follower.WhomToAsk({kFirst})), ElementsAre(10));
  EXPECT_THAT(follower.WhomToAsk({Entry("none", 13, 2001)}), IsEmpty());
}

TEST(JobFollowerTest, OfACommandTheFirstJobIsMeantAlsoWhereWorkersStartOthers) {
  JobFollower follower(std::nullopt);
  EXPECT_THAT(follower.WhomToAsk({}), IsEmpty());
  EXPECT_FALSE(follower.IsThere({}));
  const JobEntry nested = Entry("none", 11, 1500);
  EXPECT_THAT(Pids(follower.WhomToAsk({kFirst, nested})), ElementsAre(10));
  EXPECT_TRUE(follower.Takes(kFirst, Answer(kFirst, "a")));
  // Started again it is the younger one.
  const JobEntry again = Entry("none", 20, 2000);
  EXPECT_THAT(Pids(follower.WhomToAsk({nested, again})), ElementsAre(11, 20));
  EXPECT_FALSE(follower.Takes(nested, Answer(nested, "n")));
  EXPECT_TRUE(follower.Takes(again, Answer(again, "a")));
  EXPECT_THAT(Pids(follower.WhomToAsk({nested, again})), ElementsAre(20));
}

TEST(JobFollowerTest, AJobThatComesAfterItHasReplacedIt) {
  JobFollower follower = Answered();
  const JobEntry evaluation = Entry("evaluation", 20, 3000);
  const JobEntry same_name = Entry("none", 21, 3000);
  EXPECT_FALSE(follower.IsReplaced({kFirst, evaluation})) << "it is still there";
  EXPECT_FALSE(follower.IsReplaced({}));
  EXPECT_TRUE(follower.IsReplaced({evaluation}));
  EXPECT_FALSE(follower.IsReplaced({same_name})) << "it may be its successor";
  EXPECT_FALSE(follower.Takes(same_name, Answer(same_name, "b")));
  EXPECT_TRUE(follower.IsReplaced({same_name}));
  EXPECT_FALSE(JobFollower(std::nullopt).IsReplaced({evaluation}));
}

}  // namespace
}  // namespace fsdprun::chaos
