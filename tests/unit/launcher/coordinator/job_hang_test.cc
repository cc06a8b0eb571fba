// A world that hangs: what that costs, and who is to blame.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

job::WorldHangs Hang(int rank, uint64_t generation = 1) {
  return {Generation(generation), rank, std::chrono::seconds(8),
          "rank " + std::to_string(rank) + " is stopped"};
}

/// A worker that the stop has killed.
WorkerExited Killed(int rank) {
  WorkerExit exit;
  exit.rank = rank;
  exit.local_rank = rank % 2;
  exit.signal = SIGKILL;
  exit.after_stop = exit.killed_by_us = true;
  return WorkerExited{exit};
}

std::vector<std::string> StopBoth(Job* job, uint64_t generation) {
  job->Say(2, generation, Killed(2));
  job->Say(1, generation, WorkersStopped{});
  return job->Say(2, generation, WorkersStopped{});
}

TEST(JobHangTest, IsAFailureOfTheNodeThatIsCharged) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  EXPECT_THAT(job.Step(Hang(2)),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Step(Hang(2)), IsEmpty());  // It is being stopped.
  EXPECT_THAT(StopBoth(&job, 1), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
  EXPECT_EQ(job.machine_.restarts_used(), 1);
  job.Start(2, {1, 2});
  job.Step(Hang(2, 2));
  EXPECT_THAT(StopBoth(&job, 2), ElementsAre("release 1 1", "release 2 1"));
  const Failure& root = job.machine_.outcome()->failure->root;
  EXPECT_EQ(root.kind, CauseKind::kWorkerHung);
  EXPECT_EQ(root.node_name, "node-2");
  EXPECT_EQ(root.group_rank, 1);
  EXPECT_EQ(root.what, "rank 2 is stopped");
  EXPECT_EQ(job.machine_.outcome()->failure->collateral, 1);
}

TEST(JobHangTest, EndsTheJobWhereThatIsWanted) {
  JobSpec spec = Spec(2, 2, 5);
  spec.hang_ends_job = true;
  Job job(spec);
  job.RunTwo();
  job.Step(Hang(2));
  EXPECT_THAT(StopBoth(&job, 1), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("--on-hang=abort"));
  // Other failures are restarted.
  Job other(spec);
  other.RunTwo();
  other.Exit(2, 1, 0, 1);
  other.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(other.Say(2, 1, WorkersStopped{}), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
}

TEST(JobHangTest, IsTheRootCauseOfWhatItsVictimsDieOf) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  WorkerExit victim;
  victim.rank = 0;
  victim.signal = SIGABRT;  // A watchdog of its own, a moment before.
  job.Say(1, 1, WorkerExited{victim});
  job.Step(Hang(2));  // Too late: the world is being stopped for that.
  StopBoth(&job, 1);
  EXPECT_EQ(job.machine_.outcome()->failure->root.kind, CauseKind::kWorkerFailed);
  Job first(Spec(2, 2, 0));
  first.RunTwo();
  first.Step(Hang(2));
  first.Say(1, 1, WorkerExited{victim});
  StopBoth(&first, 1);
  EXPECT_EQ(first.machine_.outcome()->failure->root.kind, CauseKind::kWorkerHung);
}

TEST(JobHangTest, OfAnotherWorldIsIgnored) {
  Job job(Spec(2, 2, 3));
  EXPECT_THAT(job.Step(Hang(0)), IsEmpty());
  job.RunTwo();
  EXPECT_THAT(job.Step(Hang(0, 2)), IsEmpty());
  EXPECT_THAT(job.Step(Hang(0, 0)), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobHangTest, NodeWhoseWorkersHangAgainAndAgainIsLeftOut) {
  JobSpec spec = Spec(1, 2, 9);
  spec.quarantine_after = 2;
  for (const int rank : {2, -1}) {
    Job job(spec);
    job.RunTwo();
    for (uint64_t generation = 1; generation <= 2; ++generation) {
      job.Step(Hang(rank, generation));
      StopBoth(&job, generation);
      job.Start(generation + 1, {1, 2});
    }
    const auto left_out = ::testing::HasSubstr("quarantined node-2");
    if (rank == 2) {
      EXPECT_THAT(job.history_, Contains(left_out));
    } else {  // Nobody is to blame.
      EXPECT_THAT(job.history_, ::testing::Not(Contains(left_out)));
    }
  }
}

}  // namespace
}  // namespace fsdprun
