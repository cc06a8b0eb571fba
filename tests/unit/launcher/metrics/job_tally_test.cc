#include "launcher/metrics/job_tally.h"

#include <gtest/gtest.h>

#include "tests/unit/launcher/metrics/page_text.h"

namespace fsdprun {
namespace {

using std::chrono::seconds;

constexpr auto kFailure = static_cast<size_t>(job::StopKind::kFailure);
constexpr auto kMembership = static_cast<size_t>(job::StopKind::kMembership);

job::FailureReported Fails(CauseKind kind, Duration age) {
  job::FailureReported reported;
  reported.failure.kind = kind;
  reported.age = age;
  return reported;
}
job::WorldStopping Stops(job::StopKind kind) { return {Generation(1), kind, ""}; }

TEST(JobTallyTest, ARecoveryLastsFromTheFailureToTheNextProgress) {
  JobTally tally;
  tally.On(job::WorldCommitted{}, At(1));
  tally.Progress(At(2));
  tally.On(Fails(CauseKind::kNodeLost, seconds(3)), At(10));
  tally.On(Stops(job::StopKind::kFailure), At(10));
  tally.Progress(At(11));  // Of a worker that is being stopped.
  tally.On(job::WorldStopped{Generation(1), CauseKind::kNodeLost}, At(12));
  tally.On(job::WorldCommitted{}, At(13));
  EXPECT_EQ(tally.recovered()[kFailure], 1U);
  EXPECT_EQ(tally.until_start().Values().sample_sum, 6);
  tally.Progress(At(20));
  tally.Progress(At(21));
  EXPECT_EQ(tally.until_progress().count(), 1U);
  EXPECT_EQ(tally.until_progress().Values().sample_sum, 13);
  EXPECT_EQ(tally.faults()[static_cast<size_t>(CauseKind::kNodeLost)], 1U);
}

TEST(JobTallyTest, AWorldThatFailsBeforeItsFirstProgressProlongsTheOutage) {
  JobTally tally;
  tally.On(Stops(job::StopKind::kFailure), At(10));
  tally.On(job::WorldCommitted{}, At(11));
  tally.On(Stops(job::StopKind::kMembership), At(12));
  tally.On(job::WorldCommitted{}, At(14));
  tally.Progress(At(15));
  EXPECT_EQ(tally.recovered()[kFailure], 1U);
  EXPECT_EQ(tally.recovered()[kMembership], 1U);
  EXPECT_EQ(tally.until_progress().count(), 1U);
  EXPECT_EQ(tally.until_progress().Values().sample_sum, 5);
  EXPECT_EQ(tally.until_start().Values().sample_sum, 1 + 2) << "each of its own world";
}

TEST(JobTallyTest, StartsOfAJobThatTellsNoProgressDoNotAddUp) {
  JobTally tally;
  tally.On(job::WorldCommitted{}, At(0));
  for (int hour = 1; hour <= 3; ++hour) {
    tally.On(Fails(CauseKind::kWorkerFailed, {}), At(3600 * hour));
    tally.On(Stops(job::StopKind::kFailure), At(3600 * hour));
    tally.On(job::WorldCommitted{}, At(3600 * hour + 2));
  }
  EXPECT_EQ(tally.until_start().count(), 3U);
  EXPECT_EQ(tally.until_start().Values().sample_sum, 6);
  tally.Progress(At(3 * 3600 + 12));
  EXPECT_EQ(tally.until_progress().Values().sample_sum, 12);
}

TEST(JobTallyTest, AWorldThatFailsIsOneFailureHoweverManyRanksTell) {
  JobTally tally;
  for (int world = 1; world <= 2; ++world) {
    for (int rank = 0; rank < 8; ++rank) {
      tally.On(Fails(CauseKind::kWorkerFailed, {}), At(10 * world));
    }
    tally.On(Stops(job::StopKind::kFailure), At(10 * world));
    tally.On(job::WorldStopped{Generation(1), CauseKind::kKeeperDied}, At(10 * world + 1));
    tally.On(job::WorldCommitted{}, At(10 * world + 2));
  }
  EXPECT_EQ(tally.faults()[static_cast<size_t>(CauseKind::kWorkerFailed)], 0U);
  EXPECT_EQ(tally.faults()[static_cast<size_t>(CauseKind::kKeeperDied)], 2U) << "the root cause";
}

TEST(JobTallyTest, AStopThatEndsTheJobIsNoRecovery) {
  JobTally tally;
  tally.On(Stops(job::StopKind::kFailure), At(10));
  tally.On(job::JobFinished{}, At(11));
  EXPECT_EQ(tally.recovered()[kFailure], 0U);
  EXPECT_EQ(tally.ended()[kFailure], 1U);
  EXPECT_EQ(tally.until_start().count(), 0U);
}

TEST(JobTallyTest, WorkersThatDieBecauseTheyAreStoppedAreNoFaults) {
  JobTally tally;
  job::FailureReported reported = Fails(CauseKind::kWorkerFailed, {});
  reported.failure.worker = WorkerExit{};
  reported.failure.worker->killed_by_us = true;
  tally.On(Stops(job::StopKind::kMembership), At(1));
  tally.On(reported, At(1));
  tally.On(job::WorldStopped{}, At(1));
  for (const uint64_t faults : tally.faults()) {
    EXPECT_EQ(faults, 0U);
  }
}

TEST(JobTallyTest, TheRestIsCounted) {
  JobTally tally;
  tally.On(job::NodeJoined{}, At(1));
  tally.On(job::NodeLost{}, At(1));
  tally.On(job::NodeQuarantined{}, At(1));
  tally.On(job::Stalled{seconds(2)}, At(1));
  tally.On(job::Stalled{seconds(3)}, At(1));
  tally.Refuse();
  EXPECT_EQ(tally.joined(), 1U);
  EXPECT_EQ(tally.lost(), 1U);
  EXPECT_EQ(tally.quarantines(), 1U);
  EXPECT_EQ(tally.stalled(), seconds(5));
  EXPECT_EQ(tally.refused(), 1U);
}

}  // namespace
}  // namespace fsdprun
