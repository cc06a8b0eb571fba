// A job whose host may be replaced: see Note [One host of a job].

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <string>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

using std::chrono::seconds;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kPrepareOne = "prepare 1 g2 rank 0 of 2 restart 1";
constexpr const char* kPrepareTwo = "prepare 2 g2 rank 1 of 2 restart 1";

JobSpec PlaceSpec() {
  JobSpec spec = Spec(2, 2, 3);
  spec.join_timeout = seconds(60);
  spec.place_sure_for = seconds(10);
  spec.place_sure_from = MonoTime(std::chrono::hours(1));  // As Job::now_.
  return spec;
}

/// Generation 1 has failed, and its workers are being stopped.
void Fail(Job& job) {
  job.RunTwo();
  EXPECT_THAT(job.Exit(1, 1, 0, 1), ElementsAre("stop 1 g1 signal 15 grace 2",
                                                "stop 2 g1 signal 15 grace 2", "check place"));
}

std::vector<std::string> Stopped(Job& job) {
  EXPECT_THAT(job.Say(1, 1, WorkersStopped{}), IsEmpty());
  return job.Say(2, 1, WorkersStopped{});
}

TEST(JobPlaceTest, FirstWorldSoonAfterTheClaimAndAnOperatorsStopNeedNoLook) {
  Job job(PlaceSpec());
  EXPECT_THAT(job.Join(1), ElementsAre("admit 1"));
  EXPECT_THAT(job.Join(2), Not(Contains("check place")));
  job.Start(1, {1, 2});
  EXPECT_THAT(job.Step(job::OperatorStop{SIGTERM}), Not(Contains("check place")));
}

TEST(JobPlaceTest, FirstWorldLongAfterTheClaimWaitsForTheAnswer) {
  Job job(PlaceSpec());
  job.Join(1);
  job.Wait(seconds(11), {1});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "check place"));
  EXPECT_THAT(
      job.Step(job::PlaceChecked{job.now_}),
      ElementsAre("prepare 1 g1 rank 0 of 2 restart 0", "prepare 2 g1 rank 1 of 2 restart 0"));
}

/// This process has stalled between the order to prepare the first world and the last answer.
void StallBeforeTheCommit(Job& job) {
  job.Join(1);
  job.Join(2);
  job.Prepared(1, 1);
  job.now_ += seconds(45);
  EXPECT_THAT(job.Prepared(2, 1), ElementsAre("check place"));
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("no other launcher has taken"));
}

TEST(JobPlaceTest, WorkersAreNotStartedOnceThePlaceWasTaken) {
  Job job(PlaceSpec());
  StallBeforeTheCommit(job);
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  EXPECT_THAT(Stopped(job), ElementsAre("release 1 1", "release 2 1"));
}

TEST(JobPlaceTest, WorkersAreStartedOnceThePlaceIsSure) {
  Job job(PlaceSpec());
  StallBeforeTheCommit(job);
  EXPECT_THAT(job.Wait(seconds(30), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}),
              ElementsAre("commit 1 g1 10.0.0.1:30000", "commit 2 g1 10.0.0.1:30000"));
}

TEST(JobPlaceTest, PreparedWorldIsNotKeptForLongerThanTheJoinTimeout) {
  Job job(PlaceSpec());
  StallBeforeTheCommit(job);
  EXPECT_THAT(job.Wait(seconds(59), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Wait(seconds(1), {1, 2}),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  Stopped(job);
  EXPECT_TRUE(job.machine_.ended_at_unknown_place());
}

TEST(JobPlaceTest, NobodyLooksIfNobodyCanTakeThePlace) {
  Job job(Spec(2, 2, 3));
  job.RunTwo();
  EXPECT_THAT(job.Exit(1, 1, 0, 1),
              ElementsAre("stop 1 g1 signal 15 grace 2", "stop 2 g1 signal 15 grace 2"));
  EXPECT_THAT(Stopped(job), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, AnswerThatComesDuringTheStopCostsNoTime) {
  Job job(PlaceSpec());
  Fail(job);
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), IsEmpty());
  EXPECT_THAT(Stopped(job), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, NextWorldWaitsForTheAnswer) {
  Job job(PlaceSpec());
  Fail(job);
  EXPECT_THAT(Stopped(job), IsEmpty());
  EXPECT_THAT(std::string(job.machine_.reason()), HasSubstr("no other launcher has taken"));
  EXPECT_THAT(job.Wait(seconds(20), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, JobWhosePlaceWasTakenEndsWithoutAnotherWorld) {
  Job job(PlaceSpec());
  Fail(job);
  EXPECT_THAT(Stopped(job), IsEmpty());
  EXPECT_THAT(job.Step(job::HostReplaced{"taken"}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_EQ(job.machine_.outcome()->reason, "taken");
}

TEST(JobPlaceTest, AnswerIsOfNoUseForTheWorldAfterTheNext) {
  Job job(PlaceSpec());
  Fail(job);
  job.Step(job::PlaceChecked{job.now_});
  Stopped(job);
  job.Start(2, {1, 2});
  EXPECT_THAT(job.Exit(1, 2, 0, 1), Contains("check place"));
  job.Say(1, 2, WorkersStopped{});
  EXPECT_THAT(job.Say(2, 2, WorkersStopped{}), IsEmpty());
}

TEST(JobPlaceTest, WhatWasFoundBeforeALongWaitIsLookedUpAgain) {
  Job job(PlaceSpec());
  Fail(job);
  job.Step(job::PlaceChecked{job.now_});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(seconds(1), {1});
  job.Say(1, 1, WorkersStopped{});
  job.Wait(seconds(15), {1});
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "check place"));
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), Contains(kPrepareOne));
}

TEST(JobPlaceTest, WhatWasReadBeforeThisProcessStalledIsLookedUpAgain) {
  Job job(PlaceSpec());
  Fail(job);
  const MonoTime read_at = job.now_;
  Stopped(job);
  job.now_ += seconds(45);
  EXPECT_THAT(job.Step(job::PlaceChecked{read_at}), ElementsAre("check place"));
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, LookThatBeganBeforeAStopIsRepeated) {
  Job job(PlaceSpec());
  Fail(job);
  const MonoTime before = job.now_ - seconds(1);
  EXPECT_THAT(job.Step(job::PlaceChecked{before}), ElementsAre("check place"));
  EXPECT_THAT(Stopped(job), IsEmpty());
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, JobThatCannotFindOutEndsAtTheJoinTimeout) {
  Job job(PlaceSpec());
  Fail(job);
  Stopped(job);
  EXPECT_THAT(job.Step(job::PlaceUnknown{"etcd is silent"}), IsEmpty());
  EXPECT_THAT(std::string(job.machine_.reason()),
              HasSubstr("no other launcher has taken the run id: etcd is silent"));
  EXPECT_THAT(job.Wait(seconds(59), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Wait(seconds(1), {1, 2}), ElementsAre("release 1 1", "release 2 1"));
  EXPECT_THAT(
      job.machine_.outcome()->reason,
      HasSubstr(
          "could not be found out whether this launcher still hosts its run id (etcd is silent)"));
  EXPECT_EQ(job.machine_.outcome()->failure->others.front().worker->exit_code, 1);
  EXPECT_TRUE(job.machine_.ended_at_unknown_place());
  EXPECT_FALSE(job.machine_.awaits_place());
}

TEST(JobPlaceTest, WhoIsAskedJustBeforeTheJoinTimeoutMayAnswer) {
  Job job(PlaceSpec());
  Fail(job);
  job.Step(job::PlaceChecked{job.now_});
  job.Step(job::AgentStreamLost{Incarnation(2)});
  job.Wait(seconds(1), {1});
  job.Say(1, 1, WorkersStopped{});
  job.Wait(seconds(59), {1});
  EXPECT_THAT(job.Join(3), ElementsAre("admit 3", "check place"));
  EXPECT_THAT(job.Wait(seconds(5), {1, 3}), IsEmpty());
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), Contains(kPrepareOne));
}

TEST(JobPlaceTest, AnswerAfterTheJoinTimeoutFormsAWorldOfThoseThatAreThere) {
  JobSpec spec = PlaceSpec();
  spec.max_nodes = 3;
  spec.dead_after = seconds(600);
  Job job(spec);
  for (const uint64_t who : {1, 2, 3}) {
    job.Join(who);
  }
  job.Start(1, {1, 2, 3});
  job.Exit(1, 1, 0, 1);
  job.Step(job::PlaceChecked{job.now_});
  job.Say(3, 1, WorkersStopped{});
  job.Wait(seconds(2), {1, 2});
  EXPECT_THAT(Stopped(job), IsEmpty());  // Node 3 is silent, and may come back.
  EXPECT_THAT(job.Wait(seconds(60), {1, 2}), ElementsAre("check place"));
  EXPECT_THAT(job.Wait(seconds(5), {1, 2}), IsEmpty());
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), ElementsAre(kPrepareOne, kPrepareTwo));
}

TEST(JobPlaceTest, EndThatFollowsAnywayNeedsNoLook) {
  JobSpec spec = PlaceSpec();
  spec.max_restarts = 0;
  Job job(spec);
  job.RunTwo();
  EXPECT_THAT(job.Exit(1, 1, 0, 7), Not(Contains("check place")));
  job.Step(job::HostReplaced{"taken"});
  Stopped(job);
  EXPECT_EQ(job.machine_.outcome()->failure->root.worker->exit_code, 7);
  EXPECT_THAT(job.machine_.outcome()->reason, HasSubstr("no restarts are allowed"));
}

TEST(JobPlaceTest, WhatFailedBeforeThePlaceWasTakenIsReported) {
  Job job(PlaceSpec());
  Fail(job);
  job.Step(job::HostReplaced{"taken"});
  Stopped(job);
  const JobOutcome& outcome = *job.machine_.outcome();
  EXPECT_EQ(outcome.reason, "taken");
  EXPECT_EQ(outcome.failure->other_failures, 1);
  EXPECT_EQ(outcome.failure->others.front().worker->exit_code, 1);
}

/// One of up to two nodes has run generation 1 for longer than the place was sure; a second comes.
Job GrowingLate() {
  JobSpec spec = PlaceSpec();
  spec.min_nodes = 1;
  spec.last_call = {};
  Job job(spec);
  job.Join(1);
  job.Wait(std::chrono::milliseconds(1), {1});
  job.Start(1, {1});
  job.Wait(seconds(20), {1});
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "check place"));
  return job;
}

TEST(JobPlaceTest, WorldIsStoppedToGrowOnlyIfTheNextCanBeFormed) {
  Job job = GrowingLate();
  EXPECT_THAT(job.Step(job::PlaceUnknown{"etcd is silent"}), IsEmpty());
  EXPECT_THAT(job.Wait(seconds(120), {1, 2}), IsEmpty());
  EXPECT_EQ(job.machine_.phase(), job::Phase::kRunning);
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}),
              ElementsAre("stop 1 g1 signal 15 grace 30", "check place"));
}

TEST(JobPlaceTest, LookForAGrowthIsNotTakenForOneAfterAFailure) {
  Job job = GrowingLate();
  const MonoTime before = job.now_;
  job.now_ += std::chrono::milliseconds(100);
  EXPECT_THAT(job.Exit(1, 1, 0, 1), ElementsAre("stop 1 g1 signal 15 grace 2"));
  EXPECT_THAT(job.Step(job::PlaceChecked{before}), ElementsAre("check place"));
}

TEST(JobPlaceTest, NobodyWaitsForAnAnswerAfterAnOperatorsStop) {
  Job job(PlaceSpec());
  Fail(job);
  EXPECT_TRUE(job.machine_.awaits_place());
  job.Step(job::OperatorStop{SIGTERM});
  EXPECT_FALSE(job.machine_.awaits_place());
}

TEST(JobPlaceTest, PlaceThatIsKnownToBeLostIsNotUsedWhileTheOtherHostIsLookedFor) {
  Job job(PlaceSpec());
  job.Join(1);
  EXPECT_THAT(job.Step(job::PlaceUnknown{"another has it"}), IsEmpty());
  EXPECT_THAT(job.Join(2), ElementsAre("admit 2", "check place"));
}

TEST(JobPlaceTest, AnswerThatNobodyAskedForIsDropped) {
  Job job(PlaceSpec());
  job.RunTwo();
  EXPECT_THAT(job.Step(job::PlaceChecked{job.now_}), IsEmpty());
  EXPECT_EQ(job.machine_.stale_dropped(), 1u);
}

}  // namespace
}  // namespace fsdprun
