#include "worker/run/bad_steps.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

TrainConfig::Train Policy(const std::string& on_nonfinite, const std::string& on_spike) {
  TrainConfig::Train train;
  train.on_nonfinite = on_nonfinite;
  train.on_spike = on_spike;
  train.max_bad_steps = 2;
  train.max_rollbacks = 1;
  return train;
}

TEST(BadStepsTest, ManyInARowStop) {
  BadSteps steps(Policy("skip", "skip"));
  EXPECT_EQ(steps.Note(Verdict::kNonFinite), StepAction::kSkip);
  EXPECT_EQ(steps.Note(Verdict::kSpike), StepAction::kSkip);
  EXPECT_EQ(steps.why(), "");
  EXPECT_EQ(steps.Note(Verdict::kNonFinite), StepAction::kStop);
  EXPECT_EQ(steps.why(), "; it is bad step 3 in a row, and train.max_bad_steps is 2");
}

TEST(BadStepsTest, AGoodStepEndsARow) {
  BadSteps steps(Policy("skip", "skip"));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(steps.Note(Verdict::kNonFinite), StepAction::kSkip);
    EXPECT_EQ(steps.Note(Verdict::kSpike), StepAction::kSkip);
    EXPECT_EQ(steps.Note(Verdict::kGood), StepAction::kGoOn);
  }
}

TEST(BadStepsTest, RollbacksAreCountedOverTheWholeStart) {
  BadSteps steps(Policy("stop", "rollback"));
  EXPECT_EQ(steps.Note(Verdict::kSpike), StepAction::kRollBack);
  EXPECT_EQ(steps.Note(Verdict::kGood), StepAction::kGoOn);
  EXPECT_EQ(steps.Note(Verdict::kSpike), StepAction::kStop);
  EXPECT_EQ(steps.why(),
            "; this start has gone back to a checkpoint 1 times, and train.max_rollbacks is 1");
}

TEST(BadStepsTest, EachVerdictHasItsOwnPolicy) {
  EXPECT_EQ(BadSteps(Policy("stop", "skip")).Note(Verdict::kNonFinite), StepAction::kStop);
  EXPECT_EQ(BadSteps(Policy("stop", "skip")).Note(Verdict::kSpike), StepAction::kSkip);
  EXPECT_EQ(BadSteps(Policy("rollback", "off")).Note(Verdict::kNonFinite), StepAction::kRollBack);
}

}  // namespace
}  // namespace fsdprun::worker
