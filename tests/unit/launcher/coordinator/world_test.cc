#include "launcher/coordinator/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Answered = World::Answered;
using Ended = World::Ended;

/// A world of nodes 1 to N with two workers each; node n has group rank n - 1.
class WorldTest : public ::testing::Test {
 protected:
  World::Orders Form(int nodes) {
    spec_.max_nodes = nodes;
    std::vector<Candidate> chosen;
    for (int i = nodes; i >= 1; --i) {
      NodeInfo info;
      info.incarnation = Incarnation(i);
      info.name = "node-" + std::to_string(i);
      info.local_world_size = 2;
      info.requested_node_rank = i - 1;
      chosen.push_back({info, -1});
    }
    return world_.Form(chosen, {.generation = Generation(7)}, now_);
  }
  void Run(int nodes) {
    Form(nodes);
    for (int i = 1; i <= nodes; ++i) {
      world_.Prepared(Member(i), {StoreEndpoint{"10.0.0.1", 30000}}, now_);
    }
    world_.Commit(now_);
    for (int i = 1; i <= nodes; ++i) {
      world_.Started(Member(i));
    }
  }
  World::Orders Stop(job::StopKind kind = job::StopKind::kMembership) {
    return world_.BeginStop({kind, SIGTERM, seconds(30), "why"}, now_);
  }
  World::Member& Member(int i) {
    return *world_.FindSender({Incarnation(i), Generation(7), AgentStarted{}});
  }
  Ended End(int i, int local_rank, int code, int signal = 0) {
    WorkerExit exit;
    exit.local_rank = local_rank;
    exit.rank = 2 * (i - 1) + local_rank;
    exit.exit_code = code;
    exit.signal = signal;
    exit.killed_by_us = signal != 0;
    return world_.WorkerEnded(Member(i), exit);
  }
  static std::vector<uint64_t> To(const World::Orders& orders) {
    std::vector<uint64_t> to;
    for (const ToAgent& order : orders) {
      EXPECT_EQ(order.generation, Generation(7));
      to.push_back(order.incarnation.value());
    }
    return to;
  }
  void TearDown() override { EXPECT_EQ(world_.CheckInvariants(), ""); }

  JobSpec spec_;
  World world_{spec_};
  MonoTime now_{std::chrono::hours(1)};
};

TEST_F(WorldTest, BeforeTheFirstThereIsNone) {
  EXPECT_EQ(world_.phase(), World::Phase::kNone);
  EXPECT_EQ(world_.generation(), Generation());
  EXPECT_EQ(world_.Find(Incarnation(1)), nullptr);
  EXPECT_EQ(world_.deadline(), MonoTime::max());
  EXPECT_EQ(world_.RanFor(now_), Duration{});
}

TEST_F(WorldTest, MembersAreOrderedToPrepareAsTheyWereChosenAndFoundByIncarnation) {
  EXPECT_THAT(To(Form(3)), ElementsAre(3, 2, 1));
  EXPECT_EQ(world_.phase(), World::Phase::kPreparing);
  EXPECT_EQ(world_.world_size(), 6);
  EXPECT_EQ(Member(2).assignment.rank_offset, 2);
  EXPECT_EQ(world_.Find(Incarnation(4)), nullptr);
  EXPECT_EQ(world_.deadline(), now_ + spec_.prepare_timeout);
}

TEST_F(WorldTest, MessageAboutAnotherGenerationHasNoSender) {
  Form(2);
  EXPECT_EQ(world_.FindSender({Incarnation(1), Generation(6), AgentStarted{}}), nullptr);
  EXPECT_EQ(world_.FindSender({Incarnation(3), Generation(7), AgentStarted{}}), nullptr);
}

TEST_F(WorldTest, RepeatedAnswersCountOnce) {
  Form(2);
  const AgentPrepared prepared{StoreEndpoint{"10.0.0.1", 30000}};
  EXPECT_EQ(world_.Prepared(Member(2), prepared, now_), Answered::kOne);
  EXPECT_EQ(world_.Prepared(Member(2), prepared, now_), Answered::kNothing);
  EXPECT_EQ(world_.Prepared(Member(1), prepared, now_), Answered::kAll);
  EXPECT_EQ(world_.deadline(), now_ + spec_.join_timeout);
  EXPECT_EQ(world_.Started(Member(1)), Answered::kNothing);
  EXPECT_THAT(To(world_.Commit(now_)), ElementsAre(1, 2));
  EXPECT_EQ(world_.deadline(), now_ + spec_.start_timeout);
  EXPECT_EQ(world_.Started(Member(1)), Answered::kOne);
  EXPECT_EQ(world_.deadline(), now_ + spec_.start_timeout);
  EXPECT_EQ(world_.Stopped(Member(1)), Answered::kNothing);
  EXPECT_EQ(world_.Started(Member(2)), Answered::kAll);
  EXPECT_EQ(world_.deadline(), MonoTime::max());
}

TEST_F(WorldTest, OnlyTheFirstNodesStoreCountsAndItMustHaveOne) {
  Form(2);
  EXPECT_EQ(world_.Prepared(Member(2), {StoreEndpoint{"10.0.0.2", 40000}}, now_), Answered::kOne);
  EXPECT_EQ(world_.store().port, 0);
  EXPECT_EQ(world_.Prepared(Member(1), {}, now_), Answered::kNoStore);
  EXPECT_EQ(world_.Prepared(Member(1), {StoreEndpoint{"", 1}}, now_), Answered::kNoStore);
  EXPECT_EQ(world_.Prepared(Member(1), {StoreEndpoint{"10.0.0.1", 0}}, now_), Answered::kNoStore);
  EXPECT_TRUE(world_.IsAwaited());
  EXPECT_EQ(world_.Prepared(Member(1), {StoreEndpoint{"10.0.0.1", 30000}}, now_), Answered::kAll);
  EXPECT_EQ(world_.store().address, "10.0.0.1");
}

TEST_F(WorldTest, NewStreamHearsTheOrderThatIsOwedAndNoOther) {
  Form(1);
  const AgentPrepared prepared{StoreEndpoint{"10.0.0.1", 30000}};
  const auto open = [this] { return world_.OpenOrder(Member(1)); };
  EXPECT_TRUE(std::holds_alternative<PrepareGeneration>(open()->message));
  world_.Prepared(Member(1), prepared, now_);
  EXPECT_EQ(open(), std::nullopt);
  world_.Commit(now_);
  EXPECT_EQ(std::get<CommitGeneration>(open()->message).store.port, 30000);
  world_.Started(Member(1));
  EXPECT_EQ(open(), std::nullopt);
  Stop();
  world_.ShortenGrace(seconds(2), now_);
  EXPECT_EQ(std::get<StopWorkers>(open()->message).grace, seconds(2));
  EXPECT_EQ(std::get<StopWorkers>(open()->message).reason, "why");
  world_.Stopped(Member(1));
  EXPECT_EQ(open(), std::nullopt);
}

TEST_F(WorldTest, WorkersEndOnceAndTheLastThatEndsWellEndsTheWork) {
  Run(2);
  EXPECT_EQ(End(1, 0, 0), Ended::kWell);
  EXPECT_EQ(End(1, 0, 0), Ended::kNothing);
  EXPECT_EQ(End(1, 2, 0), Ended::kNothing);
  EXPECT_EQ(End(1, -1, 0), Ended::kNothing);
  EXPECT_FALSE(Member(1).IsDone());
  EXPECT_EQ(End(1, 1, 0), Ended::kWell);
  EXPECT_TRUE(Member(1).IsDone());
  EXPECT_EQ(End(2, 0, 0), Ended::kWell);
  EXPECT_FALSE(world_.HaveAllSucceeded());
  EXPECT_EQ(End(2, 1, 0), Ended::kAllWell);
  EXPECT_TRUE(world_.HaveAllSucceeded());
  EXPECT_TRUE(world_.ends().AllWell());
}

TEST_F(WorldTest, WorkerThatEndsWellOnceItIsStoppedHasNotDoneItsWork) {
  Run(1);
  Stop();
  WorkerExit exit;
  exit.after_stop = true;
  EXPECT_EQ(world_.WorkerEnded(Member(1), exit), Ended::kWell);
  EXPECT_FALSE(world_.HasAnySucceeded());
  EXPECT_EQ(world_.ends().well, 1);
  exit.local_rank = 1;
  exit.after_stop = false;
  EXPECT_EQ(world_.WorkerEnded(Member(1), exit), Ended::kWell);
  EXPECT_TRUE(world_.HasAnySucceeded());
}

TEST_F(WorldTest, HowWorkersEndedIsCountedAndNoted) {
  Run(2);
  EXPECT_EQ(End(1, 0, 3), Ended::kFailed);
  Stop();
  EXPECT_EQ(End(1, 1, 0, SIGKILL), Ended::kFailed);
  EXPECT_EQ(End(2, 0, 0, SIGTERM), Ended::kFailed);
  EXPECT_EQ(world_.ends().failed, 2);
  EXPECT_EQ(world_.ends().killed, 1);
  EXPECT_THAT(world_.ends().notes,
              ElementsAre("rank 0 exited with 3 on node-1", "rank 1 was killed on node-1",
                          "rank 2 died of signal 15 on node-2"));
}

TEST_F(WorldTest, NoWorkerEndsBeforeTheCommit) {
  Form(1);
  EXPECT_EQ(End(1, 0, 1), Ended::kNothing);
}

TEST_F(WorldTest, StopAwaitsEveryMemberAndGraceOnlyShrinks) {
  Run(2);
  EXPECT_THAT(To(Stop()), ElementsAre(1, 2));
  EXPECT_EQ(world_.deadline(), now_ + seconds(30) + spec_.stop_margin);
  EXPECT_EQ(world_.StopProgress().kill_at, now_ + seconds(30));
  EXPECT_EQ(world_.Stopped(Member(1)), Answered::kOne);
  EXPECT_THAT(To(world_.ShortenGrace(seconds(2), now_ + seconds(1))), ElementsAre(2));
  EXPECT_EQ(world_.deadline(), now_ + seconds(3) + spec_.stop_margin);
  EXPECT_EQ(world_.StopProgress().kill_at, now_ + seconds(3));
  EXPECT_THAT(world_.ShortenGrace(seconds(2), now_ + seconds(2)), IsEmpty());
  EXPECT_EQ(world_.Stopped(Member(2)), Answered::kAll);
}

TEST_F(WorldTest, LateOrderWithAShorterGraceDoesNotPutTheEndOff) {
  Run(1);
  Stop();
  world_.ShortenGrace(seconds(29), now_ + seconds(20));
  EXPECT_EQ(world_.StopProgress().kill_at, now_ + seconds(30));
  EXPECT_EQ(world_.deadline(), now_ + seconds(30) + spec_.stop_margin);
}

TEST_F(WorldTest, StopProgressNamesWhoIsLeft) {
  Run(2);
  Stop();
  End(2, 1, 0);
  world_.Stopped(Member(1));
  const job::StopStatus status = world_.StopProgress();
  ASSERT_EQ(status.left.size(), 1u);
  EXPECT_EQ(status.left[0].name, "node-2");
  EXPECT_EQ(status.left[0].workers, 1);
}

TEST_F(WorldTest, FailureOverridesAMembershipChangeAndNotAnOperator) {
  Run(1);
  Stop(job::StopKind::kMembership);
  world_.CountStopAsFailure();
  EXPECT_EQ(world_.stop().kind, job::StopKind::kFailure);
  Stop(job::StopKind::kOperator);
  world_.CountStopAsFailure();
  EXPECT_EQ(world_.stop().kind, job::StopKind::kOperator);
}

TEST_F(WorldTest, OverdueAreThoseWhoOweTheAnswerOfThePhase) {
  Form(2);
  const AgentPrepared prepared{StoreEndpoint{"10.0.0.1", 30000}};
  world_.Prepared(Member(1), prepared, now_);
  World::Overdue overdue = world_.PassDeadline();
  EXPECT_THAT(overdue.members, ElementsAre(Incarnation(2)));
  EXPECT_EQ(overdue.what, "did not set up logs and store within 60.0 s");
  EXPECT_EQ(world_.deadline(), MonoTime::max());
  world_.Prepared(Member(2), prepared, now_);
  EXPECT_THAT(world_.PassDeadline().members, IsEmpty());
  world_.Commit(now_);
  world_.Started(Member(2));
  overdue = world_.PassDeadline();
  EXPECT_THAT(overdue.members, ElementsAre(Incarnation(1)));
  EXPECT_EQ(overdue.what, "did not start its workers within 60.0 s");
  Stop();
  EXPECT_EQ(world_.PassDeadline().what, "did not report its workers stopped in time");
  Stop();
}

TEST_F(WorldTest, WhoIsRemovedOwesNothingAnyMore) {
  Run(3);
  Stop();
  world_.Stopped(Member(3));
  EXPECT_EQ(world_.Remove(Incarnation(3)).name, "node-3");
  EXPECT_TRUE(world_.IsAwaited());
  world_.Remove(Incarnation(2));
  EXPECT_EQ(world_.Stopped(Member(1)), Answered::kAll);
}

TEST_F(WorldTest, MemberThatAnsweredMustStillHoldTheGeneration) {
  Form(1);
  const Generation none;
  EXPECT_FALSE(world_.HasLostGeneration(Incarnation(1), none));
  EXPECT_FALSE(world_.HasLostGeneration(Incarnation(2), none));
  world_.Prepared(Member(1), {StoreEndpoint{"10.0.0.1", 30000}}, now_);
  EXPECT_TRUE(world_.HasLostGeneration(Incarnation(1), none));
  EXPECT_FALSE(world_.HasLostGeneration(Incarnation(1), Generation(7)));
  world_.Commit(now_);
  EXPECT_TRUE(world_.HasLostGeneration(Incarnation(1), none));
  world_.Started(Member(1));
  EXPECT_TRUE(world_.HasLostGeneration(Incarnation(1), none));
  Stop();
  EXPECT_FALSE(world_.HasLostGeneration(Incarnation(1), none));
}

TEST_F(WorldTest, DeadlineIsPutOffOnlyIfThereIsOne) {
  Run(1);
  world_.PutOffDeadline(seconds(5));
  EXPECT_EQ(world_.deadline(), MonoTime::max());
  Stop();
  const MonoTime deadline = world_.deadline();
  world_.PutOffDeadline(seconds(5));
  EXPECT_EQ(world_.deadline(), deadline + seconds(5));
}

TEST_F(WorldTest, StepsAreDoneOnlyByThisWorldsOwnReport) {
  Run(1);
  world_.NoteProgress({.step = 9, .total = 10, .text = ""});
  End(1, 0, 0);
  End(1, 1, 0);
  EXPECT_FALSE(world_.HasDoneAllSteps());
  world_.NoteProgress({.step = 10, .total = 10, .text = ""});
  EXPECT_TRUE(world_.HasDoneAllSteps());
  Form(1);
  EXPECT_EQ(world_.progress().step, 10);
  EXPECT_FALSE(world_.HasDoneAllSteps());
}

TEST_F(WorldTest, AfterTheEndWhatIsKnownOfItStays) {
  Run(2);
  Failure failure;
  failure.kind = CauseKind::kNodeLost;
  failure.what = "it failed";
  world_.failures().Add(failure, now_, now_);
  Stop();
  world_.End();
  EXPECT_EQ(world_.phase(), World::Phase::kNone);
  EXPECT_THAT(world_.members(), IsEmpty());
  EXPECT_FALSE(world_.IsAwaited());
  EXPECT_EQ(world_.generation(), Generation(7));
  EXPECT_EQ(world_.store().port, 30000);
  EXPECT_EQ(world_.RanFor(now_ + seconds(4)), seconds(4));
  EXPECT_FALSE(world_.failures().empty());
  Form(1);
  EXPECT_TRUE(world_.failures().empty());
  EXPECT_EQ(world_.store().port, 0);
  EXPECT_EQ(world_.RanFor(now_ + seconds(4)), Duration{});
}

}  // namespace
}  // namespace fsdprun
