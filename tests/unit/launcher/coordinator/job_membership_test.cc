// Membership: joining, leases, loss, reconnection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST(JobMembershipTest, AnAgentOfAnotherProtocolIsRefusedWithBothNamed) {
  Job job(Spec(1, 1, 0));
  NodeInfo info;
  info.incarnation = Incarnation(1);
  info.name = "node-1";
  EXPECT_THAT(job.Say(1, 0, AgentJoined{info, {}, "", {kProtocol + 1, "9.9"}}),
              ElementsAre(AllOf(StartsWith("reject 1: this node runs fsdprun 9.9 (protocol "),
                                HasSubstr(std::string("the coordinator fsdprun ") + kRelease))));
  EXPECT_THAT(job.Join(1), Contains(HasSubstr("prepare 1 g1")));
}

TEST(JobMembershipTest, ImpossibleAndTakenNodeRanksAreRefused) {
  Job job(Spec(2, 2, 0));
  EXPECT_THAT(job.Join(1, 5), ElementsAre(HasSubstr("node rank 5 is outside 0..1")));
  job.Join(2, 0);
  EXPECT_THAT(job.Join(3, 0), ElementsAre(HasSubstr("node rank 0 is taken by node node-2")));
}

JobSpec PreferenceSpec(int min, int max) {
  JobSpec spec = Spec(min, max, 3);
  spec.node_ranks_bind = false;
  return spec;
}

TEST(JobMembershipTest, PreferredRanksAreHonouredWhereTheyAreFree) {
  Job job(PreferenceSpec(3, 3));
  job.Join(1, 2);
  job.Join(2);
  EXPECT_THAT(job.Join(3, 0), ElementsAre("admit 3", "prepare 1 g1 rank 2 of 3 restart 0",
                                          "prepare 3 g1 rank 0 of 3 restart 0",
                                          "prepare 2 g1 rank 1 of 3 restart 0"));
}

TEST(JobMembershipTest, PreferredRankOfAnotherNodeIsDroppedWithOneWarning) {
  Job job(PreferenceSpec(3, 3));
  job.Join(1, 0);
  EXPECT_EQ(job.warning_, "");
  EXPECT_THAT(job.Join(2, 0), ElementsAre("admit 2"));
  EXPECT_THAT(job.warning_, HasSubstr("node node-2 asks for node rank 0, which another node has"));
  EXPECT_THAT(job.Join(3, 7), Contains("prepare 1 g1 rank 0 of 3 restart 0"));
  EXPECT_EQ(job.warning_, "");
}

TEST(JobMembershipTest, PreferredRankBeyondTheMaximumIsDropped) {
  Job job(PreferenceSpec(2, 2));
  job.Join(1, 2);
  EXPECT_THAT(job.warning_, HasSubstr("not below --nnodes"));
}

TEST(JobMembershipTest, PreferredRankOfASilentNodeDoesNotReplaceIt) {
  Job job(PreferenceSpec(1, 3));
  job.Join(1, 0);
  job.Wait(std::chrono::seconds(2));
  EXPECT_THAT(job.Join(2, 0), ElementsAre("admit 2"));
  EXPECT_EQ(job.machine_.nodes().size(), 2u);
}

TEST(JobMembershipTest, MemberKeepsARankThatANewcomerPrefers) {
  Job job(PreferenceSpec(2, 3));
  job.Join(1);
  job.Join(2);
  job.Wait(std::chrono::seconds(31), {1, 2});
  job.Start(1, {1, 2});
  EXPECT_THAT(job.Join(3, 0), Contains("stop 1 g1 signal 15 grace 30"));
  EXPECT_THAT(job.warning_, HasSubstr("node node-3 asks for node rank 0"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}),
              Contains("prepare 3 g2 rank 2 of 3 restart 0 world 1"));
}

TEST(JobMembershipTest, SurvivorKeepsARankThatANewcomerPrefers) {
  Job job(PreferenceSpec(2, 2));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(300));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Join(3, 0), ElementsAre("admit 3", "prepare 1 g2 rank 0 of 2 restart 1",
                                          "prepare 3 g2 rank 1 of 2 restart 1"));
}

TEST(JobMembershipTest, NodeLostDuringPrepareRestartsTheFormationUncharged) {
  Job job(Spec(2, 3, 0));
  job.Join(1);
  job.Join(2);
  job.Join(3);
  job.Prepared(1, 1);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(1600)),
              ElementsAre("stop 1 g1 signal 15 grace 30", "stop 3 g1 signal 15 grace 30"));
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(3, 1, WorkersStopped{}),
              ElementsAre("prepare 1 g2 rank 0 of 2 restart 0 world 1",
                          "prepare 3 g2 rank 1 of 2 restart 0 world 1"));
  EXPECT_EQ(job.machine_.membership_changes(), 1);
}

TEST(JobMembershipTest, LostNodeIsReplacedAndTheSurvivorKeepsItsPlace) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(1)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(300)), ElementsAre("stop 2 g1 signal 15 grace 2"));
  job.Say(2, 1, WorkersStopped{});
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("gone: node-1"));
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "prepare 2 g2 rank 0 of 2 restart 1",
                                       "prepare 3 g2 rank 1 of 2 restart 1"));
}

TEST(JobMembershipTest, ReconnectionWithinTheGraceKeepsTheNode) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(200));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(2), {1, 2}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobMembershipTest, ANodeWhoseAgentIsStartedAgainHasALease) {
  Job job(Spec(2, 2, 3));
  job.has_successor_ = true;
  job.RunTwo();
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(2900), {1}), IsEmpty());
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2"));
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(1000), {1}), IsEmpty());
  job.Step(job::NoSuccessor{"node-1"});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(500), {1}), IsEmpty());
  EXPECT_THAT(job.Step(job::NoSuccessor{"node-2"}), ElementsAre("stop 1 g1 signal 15 grace 2"));
}

TEST(JobMembershipTest, OpenOrdersAreRepeatedAfterAReconnection) {
  Job job(Spec(2, 2, 0));
  job.Join(1);
  job.Join(2);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "prepare 2 g1 rank 1 of 2 restart 0"));
  job.Prepared(1, 1);
  job.Prepared(2, 1);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2", "commit 2 g1 10.0.0.1:30000"));
}

TEST(JobMembershipTest, SilentNodeIsLostAfterThreeSecondsAndMayComeBackClean) {
  Job job(Spec(1, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(2900), {1}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(200), {1}),
              ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Say(2, 1, AgentHeartbeat{}), ElementsAre(HasSubstr("rejoin 2")));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2", "stop 2 g1 signal 15 grace 0"));
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 2 restart 1",
                                                           "prepare 2 g2 rank 1 of 2 restart 1"));
}

TEST(JobMembershipTest, NewAgentThatTakesOverARankIsInTheWorldThatItsArrivalForms) {
  Job job(Spec(1, 2, 1));
  job.Join(1, 0);
  job.Join(2, 1);
  job.Start(1, {1, 2});
  job.Exit(1, 1, 0, 7);
  job.Say(1, 1, WorkersStopped{});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Join(3, 1), ElementsAre("admit 3", "prepare 1 g2 rank 0 of 2 restart 1",
                                          "prepare 3 g2 rank 1 of 2 restart 1"));
}

TEST(JobMembershipTest, CoordinatorThatWasStoppedGivesEveryNodeANewLease) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.now_ += std::chrono::seconds(10);
  // The first events that it sees are the streams which the agents have given up meanwhile.
  EXPECT_THAT(job.Step(job::AgentStreamLost{Incarnation(1)}), IsEmpty());
  EXPECT_THAT(job.Step(job::AgentStreamLost{Incarnation(2)}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(2900)), IsEmpty());
  EXPECT_THAT(job.Join(1, {}, 1), ElementsAre("admit 1"));
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("admit 2"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(5), {1, 2}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
}

TEST(JobMembershipTest, NodeThatDoesNotComeBackAfterTheCoordinatorsStallIsLost) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  job.now_ += std::chrono::seconds(10);
  job.Step(job::AgentStreamLost{Incarnation(2)});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(3100), {1}),
              ElementsAre("stop 1 g1 signal 15 grace 2"));
}

TEST(JobMembershipTest, CoordinatorThatWasStoppedDoesNotHoldItsOrdersDeadlinesAgainstTheNodes) {
  Job job(Spec(2, 2, 1));
  job.RunTwo();
  EXPECT_THAT(job.Exit(2, 1, 0, 7), Contains("stop 1 g1 signal 15 grace 2"));
  job.now_ += std::chrono::seconds(60);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());  // the answers have not been read yet
  job.Say(1, 1, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 1, WorkersStopped{}), Contains("prepare 1 g2 rank 0 of 2 restart 1"));
}

TEST(JobMembershipTest, CoordinatorThatWasStoppedStillTellsTheLostNodeFromItsVictims) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.Step(
      job::AgentStreamLost{Incarnation(2)});  // The node dies, and nobody runs to see its victim.
  job.now_ += std::chrono::seconds(8);
  WorkerExited victim;
  victim.exit.exit_code = 1;
  victim.age = std::chrono::seconds(7);
  EXPECT_THAT(job.Say(1, 1, victim), Contains("stop 1 g1 signal 15 grace 2"));
  job.Wait(std::chrono::milliseconds(3100), {1});
  job.Say(1, 1, WorkersStopped{});
  EXPECT_EQ(job.machine_.outcome()->failure->root.kind, CauseKind::kNodeLost);
}

TEST(JobMembershipTest, CoordinatorThatWasStoppedSaysForHowLong) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  const Duration late = job.wake_at_ - job.now_ + std::chrono::seconds(6);
  job.now_ += late;
  job.Step(job::TimerDue{});
  EXPECT_EQ(job.stalled_, std::chrono::seconds(6));
  job.stalled_ = {};
  job.Step(job::TimerDue{});
  EXPECT_EQ(job.stalled_, Duration::zero());
}

TEST(JobMembershipTest, ManySilentNodesAtOnceExtendTheLeaseOnce) {
  Job job(Spec(4, 4, 3));
  for (const uint64_t who : {1, 2, 3, 4}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3, 4});
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(4000), {1}), IsEmpty());
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("3 of 4 nodes fell silent at once"));
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(1500), {1}), Not(IsEmpty()));
  EXPECT_EQ(job.machine_.nodes().size(), 1u);
}

TEST(JobMembershipTest, PausedCoordinatorRenewsTheLeases) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  job.now_ += std::chrono::seconds(20);
  EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
  EXPECT_THAT(job.Wait(std::chrono::seconds(5), {1, 2}), IsEmpty());
}

TEST(JobMembershipTest, BeforeTheFirstWorldNobodyIsGivenUpForSilence) {
  Job job(Spec(3, 3, 0));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(job.Wait(std::chrono::seconds(60)), IsEmpty());
  EXPECT_THAT(job.history_, IsEmpty());
  EXPECT_THAT(job.Join(3), Contains("prepare 1 g1 rank 0 of 3 restart 0"));  // Silent, but there.
  EXPECT_THAT(job.Wait(std::chrono::seconds(30)), IsEmpty());
  job.Prepared(1, 1);
  job.Prepared(2, 1);
  EXPECT_THAT(job.Prepared(3, 1), Contains("commit 1 g1 10.0.0.1:30000"));
  EXPECT_THAT(job.Wait(std::chrono::milliseconds(2900)), IsEmpty());  // All have a whole lease.
  EXPECT_THAT(job.history_, ElementsAre("formed g1 of 3 nodes, 6 workers"));
  job.Wait(std::chrono::seconds(10), {1, 2});
  EXPECT_THAT(job.history_, Contains(HasSubstr("lost node-3 was silent")));
}

TEST(JobMembershipTest, BeforeTheFirstWorldABrokenStreamHasMoreTime) {
  Job job(Spec(2, 2, 0));
  job.Join(1);
  job.Step(job::AgentStreamLost{Incarnation(1)});
  job.Wait(std::chrono::milliseconds(1400));
  EXPECT_THAT(job.history_, IsEmpty());
  job.Wait(std::chrono::milliseconds(200));
  EXPECT_THAT(job.history_, ElementsAre(HasSubstr("lost node-1 lost its stream")));
}

TEST(JobMembershipTest, CoordinatorThatIsAlwaysLateGivesNobodyUp) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  for (int i = 0; i < 100; ++i) {  // Beats lie unread for 0.4 s each time.
    job.now_ = std::max(job.wake_at_, job.now_) + std::chrono::milliseconds(400);
    EXPECT_THAT(job.Step(job::TimerDue{}), IsEmpty());
    job.Say(1, 0, AgentHeartbeat{});
    job.Say(2, 0, AgentHeartbeat{});
  }
  job.Wait(std::chrono::seconds(10), {1});
  EXPECT_THAT(job.history_, Contains(HasSubstr("lost node-2 was silent")));
}

TEST(JobMembershipTest, HeartbeatIsAnsweredIfItAsks) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  EXPECT_THAT(job.Say(1, 1, AgentHeartbeat{}), IsEmpty());
  EXPECT_THAT(job.Say(1, 1, AgentHeartbeat{{}, /*asks=*/true}), ElementsAre("heard 1"));
}

TEST(JobMembershipTest, ReleasedNodesThatLeaveOneAfterTheOtherAreWaitedFor) {
  Job job(Spec(3, 3, 0));
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3});
  for (const uint64_t who : {1, 2, 3}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  for (const uint64_t who : {1, 2}) {
    job.Wait(std::chrono::milliseconds(900));
    EXPECT_FALSE(job.finished_);
    job.Say(who, 1, AgentLeft{});
  }
  job.Wait(std::chrono::milliseconds(900));
  EXPECT_FALSE(job.finished_);
  job.Wait(std::chrono::milliseconds(200));
  EXPECT_TRUE(job.finished_);
}

TEST(JobMembershipTest, ReleasedNodeWhoseStreamBreaksHearsItsReleaseOnTheNext) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  for (const uint64_t who : {1, 2}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  job.Say(1, 1, AgentLeft{});
  job.Wait(std::chrono::milliseconds(900));
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(900));
  EXPECT_FALSE(job.finished_);
  EXPECT_THAT(job.Join(2, {}, 1), ElementsAre("release 2 0"));
  job.Wait(std::chrono::milliseconds(900));
  EXPECT_FALSE(job.finished_);
  job.Say(2, 1, AgentLeft{});
  EXPECT_TRUE(job.finished_);
}

TEST(JobMembershipTest, ReleasedNodeWhoseStreamBreaksIsNotWaitedForLong) {
  Job job(Spec(2, 2, 0));
  job.RunTwo();
  for (const uint64_t who : {1, 2}) {
    job.Exit(who, 1, 0, 0);
    job.Exit(who, 1, 1, 0);
  }
  job.Say(1, 1, AgentLeft{});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(std::chrono::milliseconds(1100));
  EXPECT_TRUE(job.finished_);
}

TEST(JobMembershipTest, StuckAndWedgedNodesAreReleasedAndTheOthersGoOn) {
  Job job(Spec(1, 2, 3));
  job.RunTwo();
  job.Exit(1, 1, 0, 1);
  EXPECT_THAT(job.Say(2, 1, NodeFaulted{CauseKind::kNodeWedged, "pid 12 outlived SIGKILL"}),
              ElementsAre("release 2 1"));
  EXPECT_TRUE(job.last_goes_on_);
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), ElementsAre("prepare 1 g2 rank 0 of 1 restart 1"));
  EXPECT_THAT(job.Wait(std::chrono::seconds(61), {1}),
              Contains("release 1 1"));  // never prepares
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRendezvous);
}

}  // namespace
}  // namespace fsdprun
