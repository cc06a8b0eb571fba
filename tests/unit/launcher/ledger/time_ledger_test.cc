#include "launcher/ledger/time_ledger.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace fsdprun {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

MonoTime At(double s) { return MonoTime(Duration(static_cast<int64_t>(s * 1e9))); }

job::News Fails(double age_s) {
  job::FailureReported reported;
  reported.age = At(age_s).time_since_epoch();
  return reported;
}
job::News Stops(job::StopKind kind) { return job::WorldStopping{Generation(1), kind, ""}; }

/// Buckets with something in them, in seconds.
std::map<std::string, double> Of(const TimeLedger::Times& times) {
  std::map<std::string, double> found;
  for (size_t i = 0; i < kTimeBuckets; ++i) {
    if (times[i] != Duration{}) {
      found[std::string(TimeBucketName(static_cast<TimeBucket>(i)))] = ToSeconds(times[i]);
    }
  }
  return found;
}
using Found = std::map<std::string, double>;

class TimeLedgerTest : public testing::Test {
 protected:
  /// Workers start at 3 s.
  void StartWorld() {
    ledger_.On(job::WorldFormed{}, At(2));
    ledger_.On(job::WorldCommitted{}, At(3));
  }
  void StartNextWorld(double at_s) {
    ledger_.On(job::WorldStopped{}, At(at_s));
    ledger_.On(job::WorldFormed{}, At(at_s + 0.5));
    ledger_.On(job::WorldCommitted{}, At(at_s + 1));
  }

  TimeLedger ledger_{At(0)};
};

TEST_F(TimeLedgerTest, AFailureIsDatedBackAndTheStepThatItCutsShortIsLost) {
  StartWorld();
  ledger_.Progress(1, At(10));
  ledger_.Progress(5, At(14));
  ledger_.On(Fails(/*age_s=*/2), At(19));
  ledger_.On(Stops(job::StopKind::kFailure), At(19));
  StartNextWorld(20);
  EXPECT_EQ(Of(ledger_.settled()), (Found{{"rendezvous", 2.5},
                                          {"prepare", 1.5},
                                          {"startup", 7},
                                          {"productive", 4},
                                          {"recompute", 3},
                                          {"detect", 2},
                                          {"stop", 1}}));
}

TEST_F(TimeLedgerTest, AFailureThatIsOlderThanTheLatestProgressTakesNothingBack) {
  StartWorld();
  ledger_.Progress(1, At(10));
  ledger_.Progress(2, At(12));
  ledger_.On(Fails(/*age_s=*/5), At(13));
  ledger_.On(Stops(job::StopKind::kFailure), At(13));
  EXPECT_EQ(
      Of(ledger_.settled()),
      (Found{{"rendezvous", 2}, {"prepare", 1}, {"startup", 7}, {"productive", 2}, {"detect", 1}}));
}

TEST_F(TimeLedgerTest, StepsThatAreDoneAgainAreRecomputed) {
  StartWorld();
  ledger_.Progress(0, At(4));
  ledger_.Progress(10, At(14));
  ledger_.On(Fails(0), At(14));
  ledger_.On(Stops(job::StopKind::kFailure), At(14));
  StartNextWorld(15);
  ledger_.Progress(6, At(17));
  EXPECT_EQ(ledger_.repeated_steps(), 5);  // 6 to 10.
  ledger_.Progress(8, At(19));
  ledger_.Progress(12, At(23));  // Two of them again, and two that are new.
  EXPECT_EQ(Of(ledger_.settled())["recompute"], 4);
  EXPECT_EQ(Of(ledger_.settled())["productive"], 12);
  EXPECT_EQ(Of(ledger_.settled())["startup"], 2);
}

TEST_F(TimeLedgerTest, WhatTakesMuchLongerThanAnyStepIsAHang) {
  StartWorld();
  ledger_.Progress(0, At(4));
  ledger_.Progress(1, At(6));
  EXPECT_EQ(Of(ledger_.All(At(9)))["hang"], 0);
  EXPECT_EQ(Of(ledger_.All(At(16)))["hang"], 6);
  ledger_.On(Fails(0), At(16));
  ledger_.On(Stops(job::StopKind::kFailure), At(16));
  EXPECT_EQ(Of(ledger_.settled())["hang"], 6);
  EXPECT_EQ(Of(ledger_.settled())["recompute"], 4);
}

TEST_F(TimeLedgerTest, AHangThatIsFoundIsOneFromItsBeginning) {
  StartWorld();
  ledger_.Progress(0, At(4));
  ledger_.Progress(1, At(6));
  job::FailureReported hang;
  hang.failure.kind = CauseKind::kWorkerHung;
  hang.age = seconds(29);
  ledger_.On(hang, At(36));
  ledger_.On(Stops(job::StopKind::kFailure), At(36));
  EXPECT_EQ(Of(ledger_.settled()), (Found{{"rendezvous", 2},
                                          {"prepare", 1},
                                          {"startup", 1},
                                          {"productive", 2},
                                          {"recompute", 1},
                                          {"hang", 29}}));
}

TEST_F(TimeLedgerTest, AWorkerThatDiedBeforeTheOthersHungIsNoHang) {
  StartWorld();
  ledger_.Progress(1, At(6));
  job::FailureReported hang;
  hang.failure.kind = CauseKind::kWorkerHung;
  hang.age = seconds(2);
  ledger_.On(Fails(/*age_s=*/3), At(10));
  ledger_.On(hang, At(10));
  ledger_.On(Stops(job::StopKind::kFailure), At(10));
  EXPECT_EQ(Of(ledger_.settled())["hang"], 0);
  EXPECT_EQ(Of(ledger_.settled())["detect"], 3);
}

TEST_F(TimeLedgerTest, StepsThatAreCountedAnewInEachEpochAreNew) {
  StartWorld();
  ledger_.Progress(0, At(4));
  ledger_.Progress(100, At(104));
  ledger_.Progress(1, At(105));
  ledger_.Progress(50, At(154));
  EXPECT_EQ(Of(ledger_.settled())["productive"], 150);
  EXPECT_EQ(Of(ledger_.settled())["recompute"], 0);
  EXPECT_EQ(Of(ledger_.All(At(155)))["productive"], 151);
}

TEST_F(TimeLedgerTest, ALongStepThatEndsIsNone) {
  StartWorld();
  ledger_.Progress(0, At(4));
  ledger_.Progress(1, At(6));
  ledger_.Progress(2, At(60));
  EXPECT_EQ(Of(ledger_.settled())["hang"], 0);
  EXPECT_EQ(Of(ledger_.settled())["productive"], 56);
}

TEST_F(TimeLedgerTest, ProgramsThatDoNotTellOfProgressRun) {
  StartWorld();
  EXPECT_EQ(Of(ledger_.All(At(13)))["running"], 10);
  ledger_.Advance(At(13));
  EXPECT_EQ(Of(ledger_.settled())["running"], 0) << "it may be starting";
  const MonoTime late = At(3) + TimeLedger::kLongestOpen + seconds(1);
  ledger_.Advance(late);
  EXPECT_EQ(Of(ledger_.settled())["running"], 601);
  ledger_.Progress(1, late + seconds(1));
  EXPECT_EQ(Of(ledger_.settled())["running"], 602) << "nothing is taken back";
  EXPECT_EQ(Of(ledger_.settled())["startup"], 0);
  EXPECT_FALSE(TimeLedger(At(0)).Goodput(Duration::max(), At(9)).has_value());
}

TEST_F(TimeLedgerTest, WorkersOfALaterWorldAreKnownToBeStarting) {
  StartWorld();
  ledger_.Progress(1, At(4));
  ledger_.On(Stops(job::StopKind::kMembership), At(4));
  StartNextWorld(5);
  EXPECT_EQ(Of(ledger_.All(At(16)))["startup"], 11);
  ledger_.On(Stops(job::StopKind::kMembership), At(16));
  EXPECT_EQ(Of(ledger_.settled())["startup"], 11);
}

TEST_F(TimeLedgerTest, WhatAnOperatorStopsIsHis) {
  StartWorld();
  ledger_.On(Stops(job::StopKind::kOperator), At(5));
  ledger_.On(Fails(0), At(6));  // Of the stop.
  ledger_.On(job::WorldStopped{}, At(9));
  EXPECT_EQ(Of(ledger_.settled())["operator"], 4);
  EXPECT_EQ(Of(ledger_.settled())["detect"], 0);
}

TEST_F(TimeLedgerTest, WorkersThatDieBecauseTheyAreStoppedTellNothing) {
  StartWorld();
  ledger_.Progress(1, At(4));
  ledger_.Progress(2, At(5));
  job::FailureReported reported;
  reported.failure.worker = WorkerExit{};
  reported.failure.worker->killed_by_us = true;
  reported.age = seconds(1);
  ledger_.On(reported, At(6));
  ledger_.On(Stops(job::StopKind::kMembership), At(6));
  EXPECT_EQ(Of(ledger_.settled())["detect"], 0);
}

TEST_F(TimeLedgerTest, TheEndIsTheEnd) {
  StartWorld();
  ledger_.Progress(1, At(4));
  ledger_.Progress(2, At(5));
  ledger_.Decide(At(6));
  ledger_.On(job::JobFinished{}, At(7));
  ledger_.Progress(3, At(8));
  ledger_.Advance(At(9));
  EXPECT_EQ(ledger_.Wall(At(9)), seconds(7));
  EXPECT_EQ(Of(ledger_.All(At(9))), (Found{{"rendezvous", 2},
                                           {"prepare", 1},
                                           {"startup", 1},
                                           {"productive", 1},
                                           {"running", 1},
                                           {"other", 1}}));
}

TEST_F(TimeLedgerTest, ACoordinatorThatTakesOverWaitsForItsNodes) {
  TimeLedger ledger(job::Phase::kRunning, At(0));
  ledger.NodesAreBack(At(2));
  EXPECT_FALSE(ledger.is_headless());
  ledger.Progress(77, At(5));
  ledger.Progress(78, At(6));
  EXPECT_EQ(Of(ledger.settled()), (Found{{"headless", 2}, {"productive", 4}}));
  EXPECT_EQ(ledger.repeated_steps(), 0);

  TimeLedger without_nodes(job::Phase::kRunning, At(0));
  without_nodes.On(Fails(3), At(10));
  without_nodes.On(Stops(job::StopKind::kFailure), At(10));
  without_nodes.On(job::WorldStopped{}, At(11));
  EXPECT_EQ(Of(without_nodes.settled()), (Found{{"headless", 10}, {"stop", 1}}));

  EXPECT_FALSE(TimeLedger(job::Phase::kRendezvous, At(0)).is_headless());
}

TEST_F(TimeLedgerTest, GoodputIsOfAWindow) {
  StartWorld();
  ledger_.Progress(0, At(3));
  for (int minute = 1; minute <= 60; ++minute) {
    ledger_.Progress(minute, At(3) + minutes(minute));
  }
  const MonoTime broken = At(3) + minutes(60);
  ledger_.On(Stops(job::StopKind::kMembership), broken);
  const MonoTime now = broken + minutes(30);
  EXPECT_NEAR(*ledger_.Goodput(std::chrono::hours(1), now), 0.5, 0.02);
  EXPECT_NEAR(*ledger_.Goodput(Duration::max(), now), 60.0 / 90, 0.01);
}

}  // namespace
}  // namespace fsdprun
