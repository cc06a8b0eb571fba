#include "agent/node/worker_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two workers, ranks 4 and 5.
class WorkerSetTest : public ::testing::Test {
 protected:
  WorkerSetTest() {
    RankAssignment assignment;
    assignment.local_world_size = 2;
    assignment.rank_offset = 4;
    workers_.Begin(assignment);
  }
  WorkerSet::Death Death(int local_rank, int code, int signal = 0) {
    WorkerSet::Death death;
    death.exit.local_rank = local_rank;
    death.exit.exit_code = code;
    death.exit.signal = signal;
    death.died_at = now_;
    return death;
  }
  std::optional<WorkerSet::Ended> End(int local_rank, int code, int signal = 0) {
    return workers_.End(Death(local_rank, code, signal));
  }
  void TearDown() override { EXPECT_EQ(workers_.CheckInvariants(), ""); }

  WorkerSet workers_;
  MonoTime now_{std::chrono::hours(1)};
};

TEST_F(WorkerSetTest, EndsAreTakenOnceAndOfWorkersOnly) {
  workers_.Started({100, 101});
  EXPECT_EQ(workers_.live(), 2);
  EXPECT_EQ(End(-1, 0), std::nullopt);
  EXPECT_EQ(End(2, 0), std::nullopt);
  EXPECT_EQ(End(1, 0)->exit.rank, 5);
  EXPECT_EQ(End(1, 0), std::nullopt);
  EXPECT_EQ(workers_.live(), 1);
  EXPECT_THAT(workers_.RunningPids(), ElementsAre(100));
}

TEST_F(WorkerSetTest, WorkerThatEndedBeforeItsStartWasHeardOfIsNotStartedAgain) {
  EXPECT_TRUE(End(0, 1).has_value());
  EXPECT_EQ(workers_.live(), 0);
  workers_.Started({100, 101});
  EXPECT_THAT(workers_.RunningPids(), ElementsAre(101));
}

TEST_F(WorkerSetTest, EndOfAllCountsThoseThatHadNotEnded) {
  workers_.Started({100});
  EXPECT_EQ(workers_.EndAll(), 2);
  EXPECT_EQ(workers_.EndAll(), 0);
  EXPECT_EQ(workers_.live(), 0);
  EXPECT_THAT(workers_.RunningPids(), IsEmpty());
}

TEST_F(WorkerSetTest, DeathIsOursOnlyBehindOurSignal) {
  workers_.Started({100, 101});
  EXPECT_FALSE(End(0, 0, SIGTERM)->exit.after_stop);
  workers_.SignalSent(SIGTERM, now_ + seconds(1));
  now_ += milliseconds(999);  // It died before the signal, and is heard of after it.
  const auto before = End(1, 0, SIGTERM);
  EXPECT_FALSE(before->exit.after_stop);
  EXPECT_FALSE(before->exit.killed_by_us);
}

TEST_F(WorkerSetTest, StoppedWorkersDieOfTheSignalThatWasSentOrOfSigkill) {
  workers_.SignalSent(SIGTERM, now_);
  const auto term = End(0, 0, SIGTERM);
  EXPECT_TRUE(term->exit.after_stop);
  EXPECT_TRUE(term->exit.killed_by_us);
  workers_.KillSent(now_ + seconds(1));
  const auto early = End(1, 0, SIGKILL);
  EXPECT_TRUE(early->exit.after_stop);
  EXPECT_FALSE(early->exit.killed_by_us);
}

TEST_F(WorkerSetTest, KillIsAStopToo) {
  workers_.KillSent(now_);
  const auto killed = End(0, 0, SIGKILL);
  EXPECT_TRUE(killed->exit.after_stop);
  EXPECT_TRUE(killed->exit.killed_by_us);
  EXPECT_FALSE(End(1, 0, SIGTERM)->exit.killed_by_us);
}

TEST_F(WorkerSetTest, ProgramThatReportedItsErrorFailedThen) {
  WorkerSet::Death death = Death(0, 1);
  death.reported_at = now_ - seconds(3);
  workers_.SignalSent(SIGTERM, now_ - seconds(1));
  const auto ended = workers_.End(death);
  EXPECT_EQ(ended->failed_at, now_ - seconds(3));
  EXPECT_TRUE(ended->exit.failed_before_stop);
  death = Death(1, 1);
  death.reported_at = now_ - milliseconds(500);
  EXPECT_FALSE(workers_.End(death)->exit.failed_before_stop);
}

TEST_F(WorkerSetTest, ErrorFileOfACrashOrOfLongAgoIsAnotherErrors) {
  WorkerSet::Death crash = Death(0, 0, SIGSEGV);
  crash.reported_at = now_ - seconds(3);
  EXPECT_EQ(workers_.End(crash)->failed_at, now_);
  WorkerSet::Death late = Death(1, 1);
  late.reported_at = now_ - milliseconds(10'001);
  EXPECT_EQ(workers_.End(late)->failed_at, now_);
}

TEST_F(WorkerSetTest, AbortAndOurOwnSignalLeaveTimeForAReport) {
  WorkerSet::Death aborted = Death(0, 0, SIGABRT);
  aborted.reported_at = now_ - seconds(10);
  EXPECT_EQ(workers_.End(aborted)->failed_at, now_ - seconds(10));
  workers_.SignalSent(SIGTERM, now_ - seconds(1));
  WorkerSet::Death stopped = Death(1, 0, SIGTERM);
  stopped.reported_at = now_ + seconds(1);  // Clocks of files and processes differ a little.
  EXPECT_EQ(workers_.End(stopped)->failed_at, now_);
}

TEST_F(WorkerSetTest, FurthestStepIsPartOfTheEnd) {
  workers_.Started({100, 101});
  EXPECT_TRUE(workers_.NoteStep(0, 7));
  EXPECT_TRUE(workers_.NoteStep(0, 6));
  EXPECT_FALSE(workers_.NoteStep(2, 6));
  EXPECT_FALSE(workers_.NoteStep(-1, 6));
  EXPECT_EQ(End(0, 1)->exit.last_step, 7);
  WorkerSet::Death death = Death(1, 1);
  death.exit.last_step = 9;
  EXPECT_EQ(workers_.End(death)->exit.last_step, 9);
}

TEST_F(WorkerSetTest, NextGenerationKnowsNothingOfTheLast) {
  workers_.Started({100, 101});
  workers_.NoteStep(0, 7);
  workers_.SignalSent(SIGTERM, now_);
  workers_.KillSent(now_);
  End(0, 0, SIGTERM);
  RankAssignment next;
  next.local_world_size = 1;
  workers_.Begin(next);
  EXPECT_EQ(workers_.live(), 0);
  const auto ended = End(0, 0, SIGTERM);
  EXPECT_FALSE(ended->exit.after_stop);
  EXPECT_FALSE(ended->exit.killed_by_us);
  EXPECT_EQ(ended->exit.last_step, -1);
  EXPECT_EQ(ended->exit.rank, 0);
}

}  // namespace
}  // namespace fsdprun
