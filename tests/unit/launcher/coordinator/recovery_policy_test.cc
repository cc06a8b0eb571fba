#include "launcher/coordinator/recovery_policy.h"

#include <gtest/gtest.h>

#include <vector>

namespace fsdprun::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

JobSpec Allowing(int restarts) {
  JobSpec spec;
  spec.max_restarts = restarts;
  return spec;
}

JobSpec Pausing(Duration first, Duration longest) {
  JobSpec spec = Allowing(100);
  spec.restart_backoff = first;
  spec.max_restart_backoff = longest;
  return spec;
}

const WorldEnd kFailed{.kind = StopKind::kFailure};
const WorldEnd kChanged{.kind = StopKind::kMembership};

TEST(RecoveryPolicyTest, FailureIsChargedUntilTheBudgetIsSpent) {
  const JobSpec spec = Allowing(2);
  RecoveryBudgets budgets;
  budgets.worlds_of_attempt = 3;
  for (int used = 1; used <= 2; ++used) {
    const Recovery recovery = Recover(kFailed, budgets, spec);
    EXPECT_EQ(recovery.rung, Rung::kRestart);
    EXPECT_TRUE(recovery.FormsWorld());
    EXPECT_EQ(recovery.budgets.restarts_used, used);
    EXPECT_EQ(recovery.budgets.worlds_of_attempt, 0);
    EXPECT_EQ(recovery.budgets.membership_changes, 0);
    budgets = recovery.budgets;
  }
  const Recovery last = Recover(kFailed, budgets, spec);
  EXPECT_EQ(last.rung, Rung::kGiveUp);
  EXPECT_FALSE(last.FormsWorld());
  EXPECT_EQ(last.budgets.restarts_used, 2);
  EXPECT_EQ(last.why, "all 2 restarts are used up");
}

TEST(RecoveryPolicyTest, WithoutABudgetTheReasonNamesTheFlag) {
  EXPECT_EQ(Recover(kFailed, {}, Allowing(0)).why, "no restarts are allowed (--max-restarts 0)");
}

TEST(RecoveryPolicyTest, MembershipChangeIsFreeEvenWhenTheBudgetIsSpent) {
  RecoveryBudgets budgets;
  budgets.worlds_of_attempt = 3;
  const Recovery recovery = Recover(kChanged, budgets, Allowing(0));
  EXPECT_EQ(recovery.rung, Rung::kReform);
  EXPECT_EQ(recovery.budgets.membership_changes, 1);
  EXPECT_EQ(recovery.budgets.restarts_used, 0);
  EXPECT_EQ(recovery.budgets.worlds_of_attempt, 3);
}

TEST(RecoveryPolicyTest, ConfigurationErrorIsNotRestarted) {
  const WorldEnd end{.kind = StopKind::kFailure, .is_permanent = true};
  EXPECT_EQ(Recover(end, {}, Allowing(5)).rung, Rung::kGiveUp);
  EXPECT_EQ(Recover(end, {}, Allowing(5)).why,
            "a worker reported a configuration error, which a restart cannot fix");
}

TEST(RecoveryPolicyTest, ErrorOfAWorldThatAChangeEndsDoesNotEndTheJob) {
  const WorldEnd end{.kind = StopKind::kMembership, .is_permanent = true};
  EXPECT_EQ(Recover(end, {}, Allowing(0)).rung, Rung::kReform);
}

TEST(RecoveryPolicyTest, WhatIsDoneIsDoneWhateverElseHappened) {
  const WorldEnd end{.kind = StopKind::kFailure,
                     .is_done = true,
                     .is_permanent = true,
                     .is_stopped_by_operator = true,
                     .is_place_lost = true};
  EXPECT_EQ(Recover(end, {}, Allowing(0)).rung, Rung::kSucceed);
}

TEST(RecoveryPolicyTest, OperatorGoesBeforeAFailureAndAFailureBeforeALostPlace) {
  WorldEnd end{.kind = StopKind::kFailure, .is_stopped_by_operator = true, .is_place_lost = true};
  EXPECT_EQ(Recover(end, {}, Allowing(0)).rung, Rung::kStopForOperator);
  end.is_stopped_by_operator = false;
  EXPECT_EQ(Recover(end, {}, Allowing(0)).rung, Rung::kGiveUp);
  EXPECT_EQ(Recover(end, {}, Allowing(1)).rung, Rung::kLeaveToOtherHost);
  end.kind = StopKind::kMembership;
  EXPECT_EQ(Recover(end, {}, Allowing(0)).rung, Rung::kLeaveToOtherHost);
}

TEST(RecoveryPolicyTest, PausesDoubleUpToTheLongest) {
  const JobSpec spec = Pausing(seconds(2), seconds(9));
  RecoveryBudgets budgets;
  std::vector<Duration> pauses;
  for (int i = 0; i < 5; ++i) {
    const Recovery recovery = Recover(kFailed, budgets, spec);
    pauses.push_back(recovery.pause);
    budgets = recovery.budgets;
  }
  EXPECT_EQ(pauses,
            (std::vector<Duration>{seconds(2), seconds(4), seconds(8), seconds(9), seconds(9)}));
}

TEST(RecoveryPolicyTest, WorldThatRanForLongerThanTheLongestPauseBeginsANewRow) {
  const JobSpec spec = Pausing(seconds(2), seconds(9));
  RecoveryBudgets budgets;
  budgets.failures_in_a_row = 3;
  WorldEnd end = kFailed;
  end.ran_for = seconds(9);
  EXPECT_EQ(Recover(end, budgets, spec).pause, seconds(9));
  end.ran_for += milliseconds(1);
  EXPECT_EQ(Recover(end, budgets, spec).pause, seconds(2));
  EXPECT_EQ(Recover(end, budgets, spec).budgets.failures_in_a_row, 1);
}

TEST(RecoveryPolicyTest, MembershipChangeNeitherPausesNorCountsInTheRow) {
  RecoveryBudgets budgets;
  budgets.failures_in_a_row = 3;
  const Recovery recovery = Recover(kChanged, budgets, Pausing(seconds(2), seconds(9)));
  EXPECT_EQ(recovery.pause, Duration{});
  EXPECT_EQ(recovery.budgets.failures_in_a_row, 3);
}

TEST(RecoveryPolicyTest, LossIsAFailureUnlessTheNodeWasLeavingOrDone) {
  EXPECT_EQ(KindOf({.cause = CauseKind::kNodeLost}), StopKind::kFailure);
  EXPECT_EQ(KindOf({.was_leaving = true}), StopKind::kMembership);
  EXPECT_EQ(KindOf({.was_done = true}), StopKind::kMembership);
}

TEST(RecoveryPolicyTest, LossBeforeTheWorkersStartIsAFailureOnlyIfTheNodeIsAtFault) {
  EXPECT_EQ(KindOf({.cause = CauseKind::kNodeLost, .has_begun = false}), StopKind::kMembership);
  EXPECT_EQ(KindOf({.cause = CauseKind::kNodeStuck, .has_begun = false}), StopKind::kFailure);
  EXPECT_EQ(KindOf({.cause = CauseKind::kNodeStuck, .was_leaving = true, .has_begun = false}),
            StopKind::kMembership);
}

TEST(RecoveryPolicyTest, GraceAfterAFailureIsShortAndNeverLongerThanADrains) {
  JobSpec spec;
  spec.stop_grace = seconds(30);
  spec.abort_grace = seconds(2);
  EXPECT_EQ(GraceOf(StopKind::kFailure, spec), seconds(2));
  EXPECT_EQ(GraceOf(StopKind::kMembership, spec), seconds(30));
  EXPECT_EQ(GraceOf(StopKind::kOperator, spec), seconds(30));
  spec.stop_grace = seconds(1);
  EXPECT_EQ(GraceOf(StopKind::kFailure, spec), seconds(1));
}

}  // namespace
}  // namespace fsdprun::job
