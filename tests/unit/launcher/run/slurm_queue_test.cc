#include <gmock/gmock.h>

#include <ctime>
#include <string>

#include "absl/strings/match.h"
#include "tests/unit/launcher/run/slurm_queue_case.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SlurmQueueTest : public SlurmQueueCase {};

TEST_F(SlurmQueueTest, LimitThatIsNearStopsTheJobOnce) {
  Say("RUNNING", 8);
  Queue();
  ASSERT_TRUE(waiter_.RunUntil([this] { return !stops_.empty(); }));
  EXPECT_THAT(stops_, ElementsAre(SIGTERM));
  EXPECT_THAT(printed_, HasSubstr("so that they can save"));
  queue_->NoteSignal(SIGTERM);  // As whoever stops the job says.
  Say("COMPLETING", 0, "TimeLimit");
  queue_->EndRun(StoppedBy(SIGTERM), machine_);
  EXPECT_THAT(stops_, ElementsAre(SIGTERM));
  EXPECT_EQ(Calls().back(), kRequeue);
}

TEST_F(SlurmQueueTest, SignalThatOneNodeHasTellsOfAllIfSlurmEndsTheJob) {
  JobSpec spec = Spec(1, 2, 0);
  spec.signalled_together = {"node-1", "node-2"};
  Job job(spec);
  job.RunTwo();
  Queue().OnStep(job.machine_);
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  Say("COMPLETING", 0);
  queue_->OnStep(job.machine_);
  EXPECT_TRUE(queue_->is_in_doubt());
  ASSERT_TRUE(waiter_.RunUntil([this] { return !stops_.empty(); }));
  EXPECT_THAT(stops_, ElementsAre(SIGTERM));
}

/// `nodes` nodes of an allocation that run; one is enough.
Job OfNodes(uint64_t nodes) {
  JobSpec spec = Spec(1, static_cast<int>(nodes), 0);
  std::vector<uint64_t> all;
  for (uint64_t who = 1; who <= nodes; ++who) {
    all.push_back(who);
    spec.signalled_together.insert(absl::StrCat("node-", who));
  }
  Job job(spec);
  for (const uint64_t who : all) {
    job.Join(who);
  }
  job.Start(1, all);
  return job;
}

TEST_F(SlurmQueueTest, AgentsThatTellOneAfterTheOtherStartOneQuestion) {
  Write("silent", "");
  Job job = OfNodes(8);
  Queue().OnStep(job.machine_);
  for (uint64_t who = 2; who < 8; ++who) {
    job.Say(who, 1, AgentLeft{SIGTERM, true});
    queue_->OnStep(job.machine_);
    ASSERT_TRUE(waiter_.PollUntil([this] { return HasCalled(kShow); }));
  }
  Say("COMPLETING", 0);
  std::filesystem::remove(folder_ / "silent");
  ASSERT_TRUE(waiter_.RunUntil([this] { return !stops_.empty(); }));
  EXPECT_THAT(Calls(), ElementsAre(kShow));
}

TEST_F(SlurmQueueTest, AnswerThatMayBeOlderThanTheSignalIsNotTheLastInADoubt) {
  Job job = OfNodes(2);
  Queue().OnStep(job.machine_);
  job.Say(2, 1, AgentLeft{SIGTERM, true});
  queue_->OnStep(job.machine_);
  ASSERT_TRUE(waiter_.PollUntil([this] { return Calls().size() >= 2; }));
  Say("COMPLETING", 0);
  ASSERT_TRUE(waiter_.RunUntil([this] { return !stops_.empty(); }));
  EXPECT_THAT(stops_, ElementsAre(SIGTERM));
}

TEST_F(SlurmQueueTest, MarginOfAJobWithoutALimitIsNoneToWarnOf) {
  plan_.requeue_margin = std::chrono::seconds(1);
  plan_.shutdown_timeout = std::chrono::seconds(30);
  for (const std::string limit : {"UNLIMITED", "01:00:00"}) {
    const int64_t now = std::time(nullptr);
    Write("record", absl::StrCat("JobId=7 JobName=x JobState=RUNNING Dependency=(null) Requeue=1 ",
                                 "Restarts=0 TimeLimit=", limit, " StartTime=", now - 10,
                                 " EndTime=", now + 3590, "\n"));
    std::filesystem::remove(folder_ / "calls");
    Job job = OfNodes(2);
    testing::internal::CaptureStderr();
    Queue().OnStep(job.machine_);
    job.Say(2, 1, AgentLeft{SIGTERM, true});
    queue_->OnStep(job.machine_);  // In doubt it looks again, and has used the first answer then.
    EXPECT_TRUE(waiter_.PollUntil([this] { return Calls().size() >= 2; }));
    const std::string logged = testing::internal::GetCapturedStderr();
    EXPECT_EQ(absl::StrContains(logged, "the workers are stopped 1 s before"),
              limit != "UNLIMITED");
  }
}

}  // namespace
}  // namespace fsdprun
