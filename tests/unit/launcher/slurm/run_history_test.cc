#include "launcher/slurm/run_history.h"

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

RunEnd End(int64_t first_step, int64_t step, bool has_saved) {
  return {.kind = RunEnd::Kind::kStopped,
          .signal = SIGUSR1,
          .first_step = first_step,
          .step = step,
          .workers = {.workers = 2, .well = has_saved ? 2 : 0}};
}

RunEnd ShortRun(RunEnd end) {
  end.is_short = true;
  return end;
}

/// What is counted after each of the runs.
std::vector<int> Count(int RunsInARow::*count, const std::vector<RunEnd>& ends) {
  std::vector<int> counts;
  std::optional<PastRun> before;
  for (const RunEnd& end : ends) {
    before = RememberRun(before, end, static_cast<int>(counts.size()));
    counts.push_back(before->runs.*count);
  }
  return counts;
}

std::vector<int> Fruitless(const std::vector<RunEnd>& ends) {
  return Count(&RunsInARow::fruitless, ends);
}

using Counts = std::vector<int>;

TEST(RunHistoryTest, StepsOrASaveAreAGoodSign) {
  EXPECT_EQ(Fruitless({End(1, 100, true), End(101, 200, true)}), (Counts{0, 0}));
  EXPECT_EQ(Fruitless({End(-1, -1, true), End(-1, -1, true)}), (Counts{0, 0}));
  EXPECT_EQ(Fruitless({End(1, 100, false)}), (Counts{0}));
}

TEST(RunHistoryTest, ProgramThatReportsNothingMayHaveSavedInALongRun) {
  const RunEnd silent = End(-1, -1, false);
  EXPECT_EQ(Fruitless({silent, silent, silent, silent}), (Counts{0, 0, 0, 0}));
  EXPECT_EQ(Fruitless({ShortRun(silent), ShortRun(silent), ShortRun(silent)}), (Counts{1, 2, 3}));
  EXPECT_EQ(Fruitless({ShortRun(silent), silent, ShortRun(silent)}), (Counts{1, 0, 1}));
  EXPECT_EQ(Fruitless({ShortRun(End(-1, -1, true))}), (Counts{0}));
}

TEST(RunHistoryTest, RunsWithoutASignOfProgressAreCountedHoweverLong) {
  const RunEnd silent = End(-1, -1, false);
  EXPECT_EQ(
      Count(&RunsInARow::silent, {silent, ShortRun(silent), silent, End(-1, -1, true), silent}),
      (Counts{1, 2, 3, 0, 1}));
  EXPECT_EQ(Count(&RunsInARow::silent, {silent, End(1, 5, false)}), (Counts{1, 0}));
}

TEST(RunHistoryTest, StepsCountHoweverLongTheRunWas) {
  const RunEnd lost = End(501, 900, false);
  EXPECT_EQ(Fruitless({ShortRun(lost), ShortRun(End(601, 900, false))}), (Counts{0, 0}));
  EXPECT_EQ(Fruitless({ShortRun(lost), ShortRun(lost)}), Fruitless({lost, lost}));
}

TEST(RunHistoryTest, StepsThatWereNotSavedAreSeenInTheNextRun) {
  const RunEnd lost = End(501, 900, false);
  EXPECT_EQ(Fruitless({lost, lost, lost, lost}), (Counts{0, 1, 2, 3}));
  EXPECT_EQ(Fruitless({lost, lost, End(501, 900, true)}), (Counts{0, 1, 0}));
  EXPECT_EQ(Fruitless({lost, lost, End(601, 900, false)}), (Counts{0, 1, 0}));
}

TEST(RunHistoryTest, SaveThatTheNextRunDoesNotFindIsNone) {
  const RunEnd pretends = End(1, 100, true);
  EXPECT_EQ(Fruitless({pretends, pretends, pretends, pretends}), (Counts{0, 1, 2, 3}));
}

TEST(RunHistoryTest, RunThatEndsBeforeItsFirstStepChangesNothingForTheNext) {
  EXPECT_EQ(Fruitless({End(1, 100, true), End(-1, -1, false), End(101, 200, true)}),
            (Counts{0, 1, 0}));
  EXPECT_EQ(Fruitless({End(1, 100, false), End(-1, -1, false), End(1, 100, false)}),
            (Counts{0, 1, 2}));
}

TEST(RunHistoryTest, RecordOfAnotherJobWithThisIdIsNone) {
  const PastRun other{
      .restarts = 4, .first_step = 900, .has_saved = true, .runs = {.fruitless = 2}};
  EXPECT_EQ(RememberRun(other, End(1, 1, false), 0).runs.fruitless, 1);
  EXPECT_EQ(RememberRun(other, End(1, 1, false), 5).runs.fruitless, 3);
}

TEST(RunHistoryTest, EveryRunCountsWhereNothingCanBeRemembered) {
  EXPECT_EQ(RunsOfUnknown(ShortRun(End(-1, -1, false)), 2), (RunsInARow{3, 3}));
  EXPECT_EQ(RunsOfUnknown(End(-1, -1, false), 9), (RunsInARow{0, 10}));
  EXPECT_EQ(RunsOfUnknown(End(1, 5, false), 9), (RunsInARow{0, 0}));
}

// As of a file system that was slow.
TEST(RunHistoryTest, RunCountsAloneIfWhatWasBeforeIsNotRead) {
  EXPECT_EQ(RememberRun(std::nullopt, ShortRun(End(-1, -1, false)), 5).runs.fruitless, 1);
  EXPECT_EQ(RememberRun(std::nullopt, End(-1, -1, false), 5).runs.fruitless, 0);
}

TEST(RunHistoryTest, LaunchersOfOneJobHaveNamesThatAreTheSameInAllRuns) {
  LaunchPlan plan;
  plan.scheduler_job = SchedulerJob{.name = "12_3"};
  plan.program = {"/data/prepare.py", "--out=2026-01-01"};
  const Environment shell = {{"SLURM_CLUSTER_NAME", "big"}};
  const std::string name = RunHistoryName(plan, shell);
  EXPECT_EQ(name, "big.12_3.prepare.py");
  plan.scheduler_job->restarts = 1;
  plan.rdzv_id = "slurm-12_3-restart-1";
  plan.program.back() = "--out=2026-01-02";
  EXPECT_EQ(RunHistoryName(plan, shell), name);
  plan.program = {"train.py"};
  EXPECT_EQ(RunHistoryName(plan, shell), "big.12_3.train.py");
  Environment step = shell;
  step["SLURM_STEP_ID"] = "4";
  EXPECT_EQ(RunHistoryName(plan, step), "big.12_3.4.train.py");
  // Each task has a launcher of its own, or all have one job.
  step["SLURM_PROCID"] = "499";
  EXPECT_EQ(RunHistoryName(plan, step), "big.12_3.4.499.train.py");
  plan.max_nodes = 500;
  EXPECT_EQ(RunHistoryName(plan, step), "big.12_3.4.train.py");
  // Whatever it has, it is one file in the folder.
  plan.program = {"a b\n" + std::string(1000, 'x')};
  EXPECT_EQ(RunHistoryName(plan, {}).find_first_of(" \n/"), std::string::npos);
  EXPECT_LT(RunHistoryName(plan, {}).size(), 100u);
}

TEST(RunHistoryTest, ReadsWhatItWrites) {
  const PastRun run{
      .restarts = 4, .first_step = 900, .has_saved = true, .runs = {.fruitless = 2, .silent = 3}};
  const auto read = DecodePastRun(EncodePastRun(run));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, run);
  for (const char* text :
       {"", "fsdprun-slurm-run=1 restarts=1", "restarts=1 first_step=2",
        "fsdprun-slurm-run=1 restarts=1 first_step=x has_saved=0 fruitless=1 silent=0",
        "fsdprun-slurm-run=1 restarts=1 first_step=1 has_saved=0 fruitless=1",
        "fsdprun-slurm-run=1 restarts=1 first_step=1 has_saved=0 fruitless=1 silent=-1",
        "fsdprun-slurm-run=1 restarts=1 first_step=1 has_saved=0 fruitless=-1 silent=0"}) {
    EXPECT_FALSE(DecodePastRun(text).ok()) << text;
  }
}

}  // namespace
}  // namespace fsdprun
