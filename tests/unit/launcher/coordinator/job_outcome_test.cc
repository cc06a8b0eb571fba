// How a job ends: its outcome, the root cause, the release of each agent; and what an observer sees
// until then.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;

/// All members of `g` have stopped.
std::vector<std::string> StopAll(Job& job, uint64_t g, const std::vector<uint64_t>& who) {
  std::vector<std::string> last;
  for (const uint64_t w : who) {
    last = job.Say(w, g, WorkersStopped{});
  }
  return last;
}

TEST(JobOutcomeTest, FailedWorkerIsNamedWithItsNodeAndExitStatus) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  job.Exit(2, 1, 1, 7);
  StopAll(job, 1, {1, 2});
  job.Start(2, {1, 2});
  job.Exit(2, 2, 1, 0, SIGSEGV);
  StopAll(job, 2, {1, 2});
  const JobOutcome& outcome = *job.machine_.outcome();
  EXPECT_EQ(outcome.reason, "rank 1 died of signal 11 on node node-2; all 1 restarts are used up");
  EXPECT_EQ(outcome.failure->root.node_address, "10.0.0.2");
}

TEST(JobOutcomeTest, AllNodesExitAsTheWorkerIfTheyAreToldTo) {
  for (const bool as_worker : {false, true}) {
    JobSpec spec = Spec(2, 2, 0);
    spec.exits_as_worker = as_worker;
    Job job(spec);
    job.RunTwo();
    job.Exit(2, 1, 1, 7);
    const std::string code = as_worker ? "7" : "1";
    EXPECT_THAT(StopAll(job, 1, {1, 2}), ElementsAre("release 1 " + code, "release 2 " + code));
    EXPECT_EQ(job.machine_.outcome()->exit_code, as_worker ? 7 : 1);
  }
}

TEST(JobOutcomeTest, WithoutRestartsTheFlagIsNamed) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 1, 7);
  StopAll(job, 1, {1, 2});
  EXPECT_EQ(job.machine_.outcome()->reason,
            "rank 1 exited with 7 on node node-2; no restarts are allowed (--max-restarts 0)");
  EXPECT_EQ(job.machine_.outcome()->failure->root.group_rank, 1);
}

TEST(JobOutcomeTest, LostNodeIsTheCauseAndNamedOnce) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300), {1});
  job.Say(1, 1, WorkersStopped{});
  const JobOutcome& outcome = *job.machine_.outcome();
  EXPECT_EQ(outcome.failure->root.kind, CauseKind::kNodeLost);
  EXPECT_EQ(outcome.failure->root.node_name, "node-2");
  EXPECT_THAT(outcome.reason, HasSubstr("stream"));
  EXPECT_THAT(outcome.reason, HasSubstr("within 0.2 s"));
  EXPECT_THAT(outcome.reason, Not(HasSubstr(" on node")));
}

TEST(JobOutcomeTest, SilentNodeIsNamedWithTheTimeOfItsSilence) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Wait(std::chrono::seconds(4), {1});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("was silent for 3.0 s"));
}

TEST(JobOutcomeTest, SilenceThatBeganLongAfterTheFailureIsNotItsCause) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  job.Wait(std::chrono::seconds(2), {1, 2});
  job.Wait(std::chrono::seconds(4), {1});
  job.Say(1, 1, WorkersStopped{});
  const FailureReport& report = *job.machine_.outcome()->failure;
  EXPECT_EQ(report.root.kind, CauseKind::kWorkerFailed);
  ASSERT_EQ(report.others.size(), 1u);
  EXPECT_EQ(report.others[0].kind, CauseKind::kNodeLost);
}

TEST(JobOutcomeTest, StreamThatBrokeBeforeTheFailureIsItsCause) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(100), {1});
  job.Exit(1, 1, 0, 1);
  job.Wait(std::chrono::milliseconds(300), {1});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.outcome()->failure->root.kind, CauseKind::kNodeLost);
}

/// Node 1 reports that a worker failed with an error just now, and 30 ms later node 2 reports
/// `later`.
CauseKind CauseWhenHeardAfterAFailure(const AgentMessage& later) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  WorkerExit failed;
  failed.exit_code = 1;
  failed.error_message = "ValueError: no data";
  job.Say(1, 1, WorkerExited{failed});
  job.Wait(std::chrono::milliseconds(30));
  job.Say(2, 1, later);
  StopAll(job, 1, {1, 2});
  return job.machine_.outcome()->failure->root.kind;
}

TEST(JobOutcomeTest, ReportsAreOrderedByTheirAge) {
  const auto fault = [](int64_t age_ms) {
    return NodeFaulted{CauseKind::kKeeperDied, "keeper died", std::chrono::milliseconds(age_ms)};
  };
  EXPECT_EQ(CauseWhenHeardAfterAFailure(fault(0)), CauseKind::kWorkerFailed);
  EXPECT_EQ(CauseWhenHeardAfterAFailure(fault(29)), CauseKind::kWorkerFailed);
  EXPECT_EQ(CauseWhenHeardAfterAFailure(fault(31)), CauseKind::kKeeperDied);

  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(1, 1, 0, 7);
  WorkerExit earlier;
  earlier.exit_code = 3;
  job.Say(2, 1, WorkerExited{earlier, std::chrono::milliseconds(1)});
  StopAll(job, 1, {1, 2});
  EXPECT_EQ(job.machine_.outcome()->failure->root.worker->exit_code, 3);
}

TEST(JobOutcomeTest, OperatorsStopKeepsTheReportOfAnEarlierFailure) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Exit(1, 1, 0, 7);
  job.Step(job::OperatorStop{SIGINT});
  StopAll(job, 1, {1, 2});
  const JobOutcome& outcome = *job.machine_.outcome();
  EXPECT_EQ(outcome.kind, OutcomeKind::kStoppedBySignal);
  ASSERT_TRUE(outcome.failure);
  EXPECT_EQ(outcome.failure->root.worker->exit_code, 7);
}

TEST(JobOutcomeTest, NodesLearnWhetherTheirWorkersWereCutOff) {
  Job stopped(Spec(2, 2, 0));
  stopped.RunTwo();
  stopped.Step(job::OperatorStop{SIGTERM});
  StopAll(stopped, 1, {1, 2});
  EXPECT_TRUE(stopped.last_is_cut_off_);
  Job failed(Spec(2, 2, 0));
  failed.RunTwo();
  failed.Exit(1, 1, 0, 7);
  StopAll(failed, 1, {1, 2});
  EXPECT_FALSE(failed.last_is_cut_off_);
  Job lost(Spec(2, 2, 0));
  lost.RunTwo();
  lost.Step(job::AgentStreamLost{Incarnation(2)});
  lost.Wait(std::chrono::milliseconds(300), {1});
  lost.Say(1, 1, WorkersStopped{});
  EXPECT_EQ(lost.machine_.outcome()->kind, OutcomeKind::kFailed);
  EXPECT_TRUE(lost.last_is_cut_off_);
  EXPECT_FALSE(lost.last_goes_on_);
  Job succeeded(Spec(1, 1, 0));
  succeeded.Join(1);
  succeeded.Start(1, {1});
  succeeded.Exit(1, 1, 0, 0);
  succeeded.Exit(1, 1, 1, 0);
  EXPECT_EQ(succeeded.machine_.outcome()->kind, OutcomeKind::kSucceeded);
  EXPECT_FALSE(succeeded.last_is_cut_off_);
}

TEST(JobOutcomeTest, JoinTimeoutAfterAFailureReportsBoth) {
  JobSpec spec = Spec(2, 2, 1);
  spec.join_timeout = std::chrono::seconds(5);
  Job job(spec);
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300), {1});
  job.Say(1, 1, WorkersStopped{});
  job.Wait(std::chrono::seconds(6), {1});
  const FailureReport& report = *job.machine_.outcome()->failure;
  EXPECT_EQ(report.root.kind, CauseKind::kJoinTimeout);
  ASSERT_EQ(report.others.size(), 1u);
  EXPECT_EQ(report.others[0].kind, CauseKind::kNodeLost);
}

TEST(JobOutcomeTest, MissingNodeRanksAreFoundAmongManyAndFewNodesAreNamed) {
  Job job(Spec(11, 11, 0));
  for (const int rank : {0, 1, 2, 3, 4, 5, 6, 8, 9}) {
    job.Join(rank + 1, rank);
  }
  EXPECT_THAT(std::string(job.machine_.reason()),
              EndsWith("node-6, node-7, node-9, ...); missing node rank 7, 10"));
  job.Join(11, 10);
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("10 of 11 joined"));
  EXPECT_THAT(std::string(job.machine_.reason()), EndsWith("missing node rank 7"));
}

TEST(JobOutcomeTest, NoMissingRanksAreListedWhenNoneWereRequested) {
  Job job(Spec(4, 4, 0));
  job.Join(1, 0);
  job.Join(2);
  job.Join(3);
  EXPECT_EQ(job.machine_.reason(), "waiting for nodes: 3 of 4 joined (node-1, node-2, node-3)");
}

TEST(JobOutcomeTest, AgentThatJoinsAnEndedJobIsToldThatItIsOver) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Exit(2, 1, 0, 7);
  StopAll(job, 1, {1, 2});
  EXPECT_THAT(job.Join(8), ElementsAre("release 8 1"));
  EXPECT_THAT(job.Join(9, {}, 1), ElementsAre("release 9 1"));

  Job succeeded(Spec(1, 1, 0));
  succeeded.Join(1);
  succeeded.Start(1, {1});
  succeeded.Exit(1, 1, 0, 0);
  EXPECT_THAT(succeeded.Exit(1, 1, 1, 0), ElementsAre("release 1 0"));
  EXPECT_THAT(succeeded.Join(8), ElementsAre("release 8 1"));
  EXPECT_THAT(succeeded.last_release_,
              HasSubstr("the job with this run id is over: all 2 workers"));
  EXPECT_THAT(succeeded.Join(9, {}, 1), ElementsAre("release 9 0"));  // lost, but of the last world
}

TEST(JobOutcomeTest, SpareThatMissedItsReleaseHearsItAgain) {
  Job job(Spec(1, 1, 0));
  job.Join(1);
  job.Join(2);
  job.Start(1, {1});
  job.Exit(1, 1, 0, 0);
  EXPECT_THAT(job.Exit(1, 1, 1, 0), ElementsAre("release 1 0", "release 2 0"));
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2), ElementsAre("release 2 0"));
}

TEST(JobOutcomeTest, ReleaseIsRepeatedWithTheSameCode) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  job.Exit(2, 1, 0, 7);
  EXPECT_THAT(StopAll(job, 1, {1, 2}), ElementsAre("release 1 1", "release 2 1", "release 3 0"));
  EXPECT_THAT(job.Join(1, {}, 1), ElementsAre("release 1 1"));
  EXPECT_THAT(job.Join(3), ElementsAre("release 3 0"));
}

TEST(JobOutcomeTest, ProgressIsWhatGroupRankZeroReportsOfThisGeneration) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Join(3);
  const auto report = [&job](uint64_t who, uint64_t g, int64_t step) {
    job.Say(who, g, AgentHeartbeat{Progress{step, 100, ""}});
    return job.machine_.progress().step;
  };
  EXPECT_EQ(report(1, 1, 10), 10);
  EXPECT_EQ(report(1, 1, -1), 10);  // nothing new to say
  EXPECT_EQ(report(2, 1, 99), 10);  // another group rank
  EXPECT_EQ(report(1, 0, 50), 10);  // another generation
  EXPECT_EQ(report(3, 1, 77), 10);  // a spare
}

TEST(JobOutcomeTest, RevisionRisesWithDecisionsAndNotWithHeartbeats) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  const uint64_t running = job.machine_.revision();
  job.Say(1, 1, AgentHeartbeat{});
  job.Step(job::TimerDue{});
  EXPECT_THAT(job.machine_.revision(), Eq(running));
  job.Exit(1, 1, 0, 7);
  EXPECT_GT(job.machine_.revision(), running);
}

}  // namespace
}  // namespace fsdprun
