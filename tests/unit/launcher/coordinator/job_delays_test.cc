// What the job waits for: the pause before a restart, nodes that come together, nodes that are to
// be told that the job cannot start.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using std::chrono::milliseconds;
using std::chrono::seconds;

// --- Pause before a restart

JobSpec PausingSpec(int restarts) {
  JobSpec spec = Spec(1, 1, restarts);
  spec.restart_backoff = seconds(2);
  spec.max_restart_backoff = seconds(5);
  return spec;
}

/// Generation `g` of the one node fails and has been stopped.
void Fail(Job& job, uint64_t g) {
  job.Start(g, {1});
  job.Exit(1, g, 0, 7);
  EXPECT_THAT(job.Say(1, g, WorkersStopped{}), IsEmpty());
  EXPECT_TRUE(job.machine_.is_pausing());
}

/// How long it takes until generation `g` is ordered, to 0.1 s.
Duration PauseBefore(Job& job, uint64_t g) {
  const MonoTime from = job.now_;
  while (job.machine_.generation() < Generation(g) && job.now_ < from + seconds(60)) {
    job.Wait(milliseconds(100), {1});
  }
  return job.now_ - from;
}

TEST(JobDelaysTest, PauseBeforeRestartsDoublesUpToItsMaximum) {
  Job job(PausingSpec(9));
  job.Join(1);
  Fail(job, 1);
  EXPECT_THAT(std::string(job.machine_.reason()),
              HasSubstr("pausing for 2.0 s before restart 1 of 9"));
  EXPECT_EQ(PauseBefore(job, 2), seconds(2));
  EXPECT_FALSE(job.machine_.is_pausing());
  Fail(job, 2);
  EXPECT_EQ(PauseBefore(job, 3), seconds(4));
  Fail(job, 3);
  EXPECT_EQ(PauseBefore(job, 4), seconds(5));
  Fail(job, 4);
  EXPECT_EQ(PauseBefore(job, 5), seconds(5));
}

TEST(JobDelaysTest, WorldThatRanForLongBeginsANewRowOfPauses) {
  Job job(PausingSpec(9));
  job.Join(1);
  Fail(job, 1);
  PauseBefore(job, 2);
  Fail(job, 2);
  PauseBefore(job, 3);
  job.Start(3, {1});
  job.Wait(seconds(6), {1});
  job.Exit(1, 3, 0, 7);
  job.Say(1, 3, WorkersStopped{});
  EXPECT_EQ(PauseBefore(job, 4), seconds(2));
}

TEST(JobDelaysTest, OperatorEndsThePauseAndTheJobAtOnce) {
  Job job(PausingSpec(9));
  job.Join(1);
  Fail(job, 1);
  EXPECT_THAT(job.Step(job::OperatorStop{2}), ElementsAre("release 1 1"));
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("before a restart"));
  EXPECT_EQ(job.machine_.outcome()->failure->root.worker->exit_code, 7);
}

TEST(JobDelaysTest, JoinTimeoutDoesNotRunDuringThePause) {
  JobSpec spec = PausingSpec(9);
  spec.join_timeout = seconds(1);
  Job job(spec);
  job.Join(1);
  Fail(job, 1);
  job.Step(job::AgentStreamLost{Incarnation(1)});
  EXPECT_THAT(job.Wait(milliseconds(2900)), IsEmpty());
  EXPECT_THAT(job.Wait(milliseconds(200)), ElementsAre("finish 1"));
  EXPECT_EQ(job.finished_->failure->root.kind, CauseKind::kJoinTimeout);
}

TEST(JobDelaysTest, NodesThatCameDuringThePauseAreInTheNextWorld) {
  JobSpec spec = PausingSpec(9);
  spec.max_nodes = 2;
  spec.last_call = {};
  Job job(spec);
  job.Join(1);
  job.Wait(milliseconds(1), {1});
  Fail(job, 1);
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(seconds(3), {1, 2}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                        "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobDelaysTest, MembershipChangesAreNotDelayed) {
  JobSpec spec = PausingSpec(9);
  spec.max_nodes = 2;
  spec.last_call = {};
  Job job(spec);
  job.Join(1);
  job.Wait(milliseconds(1), {1});
  job.Start(1, {1});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("node node-2 joins a world of 1"));
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}),
              Contains("prepare 2 g2 rank 1 of 2 restart 0 world 1"));
}

// --- Growth

/// One node runs generation 1 of a job of up to `max` nodes.
Job RunsAlone(int max) {
  JobSpec spec = Spec(1, max, 0);
  spec.last_call = {};
  Job job(spec);
  job.Join(1);
  job.Wait(milliseconds(1), {1});
  job.Start(1, {1});
  return job;
}

TEST(JobDelaysTest, NodesThatJoinTogetherStopTheWorldOnce) {
  Job job = RunsAlone(9);
  for (const uint64_t who : {2, 3, 4}) {
    EXPECT_THAT(job.Join(who), ElementsAre("admit " + std::to_string(who)));
    EXPECT_THAT(job.Wait(milliseconds(100), {1}), IsEmpty());
  }
  EXPECT_THAT(job.Wait(milliseconds(150), {1}), ElementsAre("stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("3 nodes join a world of 1"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.membership_changes(), 1);
  job.Start(2, {1, 2, 3, 4});
  EXPECT_THAT(job.Wait(seconds(2), {1, 2, 3, 4}), IsEmpty());
}

TEST(JobDelaysTest, GrowthToTheMaximumDoesNotWait) {
  Job job = RunsAlone(3);
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "stop 1 g1 signal 15 grace 30"));
}

TEST(JobDelaysTest, ATrickleOfNodesDoesNotPutGrowthOff) {
  Job job = RunsAlone(99);
  std::vector<std::string> said;
  uint64_t who = 2;
  for (; said.empty() && who < 20; ++who) {
    job.Join(who);
    said = job.Wait(milliseconds(150), {1});
  }
  EXPECT_THAT(said, ElementsAre("stop 1 g1 signal 15 grace 30"));
  EXPECT_LT(who, 7u);
}

TEST(JobDelaysTest, NodeThatLeavesAgainDoesNotStopTheWorld) {
  Job job = RunsAlone(9);
  job.Join(2);
  job.Say(2, 0, AgentLeft{15, false});
  EXPECT_THAT(job.Wait(seconds(2), {1}), IsEmpty());
}

// --- Programs that cannot be run

std::vector<std::string> JoinWithoutProgram(Job& job, uint64_t who) {
  NodeInfo info;
  info.incarnation = Incarnation(who);
  info.name = "node-" + std::to_string(who);
  return job.Say(who, 0, AgentJoined{info, Generation{}, "cannot run './x': no such file"});
}

TEST(JobDelaysTest, NodeWithoutTheProgramEndsTheJobOnceAllNodesAreThere) {
  Job job(Spec(3, 3, 5));
  job.Join(1);
  EXPECT_THAT(JoinWithoutProgram(job, 2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "release 1 1", "release 2 1", "release 3 1"));
  EXPECT_THAT(job.machine_.outcome()->reason,
              HasSubstr("node node-2 cannot run the program: cannot run './x'"));
  EXPECT_EQ(job.machine_.outcome()->failure->root.kind, CauseKind::kCannotStart);
  EXPECT_EQ(job.machine_.outcome()->failure->root.node_name, "node-2");
}

TEST(JobDelaysTest, NodeWithoutTheProgramThatComesLastEndsTheJobAtOnce) {
  Job job(Spec(2, 2, 5));
  job.Join(1);
  EXPECT_THAT(JoinWithoutProgram(job, 2), ElementsAre("admit 2", "release 1 1", "release 2 1"));
}

TEST(JobDelaysTest, JobThatCannotStartDoesNotWaitForNodesThatDoNotCome) {
  Job job(Spec(1, 3, 5));
  JoinWithoutProgram(job, 1);
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(milliseconds(4900), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Wait(milliseconds(200), {1, 2}), ElementsAre("release 1 1", "release 2 1"));
}

TEST(JobDelaysTest, NodesGetTheirTimeToHearThatTheJobCannotStartAlsoWhenTheCoordinatorStalls) {
  Job job(Spec(2, 3, 5));
  JoinWithoutProgram(job, 1);
  job.now_ += seconds(60);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
  EXPECT_THAT(job.Wait(milliseconds(500), {1}), IsEmpty());
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(milliseconds(3300), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Wait(milliseconds(400), {1, 2}), ElementsAre("release 1 1", "release 2 1"));
}

TEST(JobDelaysTest, JobThatCannotStartForWantOfTheProgramSaysSoAlsoAtTheJoinTimeout) {
  JobSpec spec = Spec(2, 2, 5);
  spec.join_timeout = seconds(1);
  Job job(spec);
  JoinWithoutProgram(job, 1);
  EXPECT_THAT(job.Wait(milliseconds(1100), {1}), ElementsAre("release 1 1"));
  EXPECT_EQ(job.machine_.outcome()->failure->root.kind, CauseKind::kCannotStart);
}

TEST(JobDelaysTest, NodeWithoutTheProgramIsTurnedAwayFromAJobThatHasRun) {
  Job job = RunsAlone(3);
  EXPECT_THAT(JoinWithoutProgram(job, 2), ElementsAre("reject 2: cannot run './x': no such file"));
  EXPECT_THAT(job.Wait(seconds(5), {1}), IsEmpty());
}

}  // namespace
}  // namespace fsdprun
