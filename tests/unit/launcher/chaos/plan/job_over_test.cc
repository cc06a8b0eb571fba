#include "launcher/chaos/plan/job_over.h"

#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

using std::chrono::seconds;

constexpr MonoTime kSeen{seconds(1000)};
constexpr Duration kPatience = seconds(120);

std::optional<JobOver> After(Form form, const JobTrace& trace, Duration time,
                             Duration patience = kPatience) {
  return OverByTrace(form, trace, patience, kSeen + time);
}

JobTrace Gone() { return {.seen_at = kSeen, .has_run = true}; }

// Whoever starts its coordinator again has as much time as the job has for an answer.
TEST(JobOverTest, AJobThatRanAlreadyIsWaitedForAsLongAsForAnAnswer) {
  EXPECT_FALSE(After(Form::kAttached, Gone(), seconds(60)).has_value());
  EXPECT_FALSE(After(Form::kAttached, Gone(), kPatience).has_value());
  const std::optional<JobOver> over = After(Form::kAttached, Gone(), seconds(121));
  ASSERT_TRUE(over.has_value());
  EXPECT_FALSE(over->exit_code.has_value()) << "nobody knows";
  EXPECT_EQ(over->gone_for, seconds(121));
}

TEST(JobOverTest, AStandbyHasTimeHoweverImpatientSomebodyIs) {
  EXPECT_FALSE(After(Form::kAttached, Gone(), seconds(35), seconds(1)).has_value());
  EXPECT_TRUE(After(Form::kAttached, Gone(), seconds(36), seconds(1)).has_value());
}

TEST(JobOverTest, AJobThatIsThereOrHasNotRunIsNotOver) {
  JobTrace trace = Gone();
  trace.is_there = true;
  EXPECT_FALSE(After(Form::kAttached, trace, seconds(1000)).has_value());
  trace = Gone();
  trace.has_run = false;
  EXPECT_FALSE(After(Form::kAttached, trace, seconds(1000)).has_value());
}

TEST(JobOverTest, WhatTheJobHasSaidOfItsEndIsItsEnd) {
  JobTrace trace = Gone();
  trace.is_there = true;
  trace.exit_code = 3;
  const std::optional<JobOver> over = After(Form::kAttached, trace, seconds(0));
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->exit_code, 3);
  EXPECT_FALSE(over->gone_for.has_value());
}

TEST(JobOverTest, ACommandMayGoOnAfterItsJob) {
  JobTrace trace = Gone();
  EXPECT_FALSE(After(Form::kOneLauncher, trace, seconds(1000)).has_value());
  trace.exit_code = 0;
  trace.is_there = true;
  EXPECT_FALSE(After(Form::kOneLauncher, trace, seconds(0)).has_value());
  trace.is_there = false;
  EXPECT_EQ(After(Form::kOneLauncher, trace, seconds(0)).value_or(JobOver{}).exit_code, 0);
}

TEST(JobOverTest, AnotherJobOfTheCommandTellsThatTheFirstIsOver) {
  JobTrace trace = Gone();
  trace.is_replaced = true;
  const std::optional<JobOver> over = After(Form::kOneLauncher, trace, seconds(0));
  ASSERT_TRUE(over.has_value());
  EXPECT_FALSE(over->exit_code.has_value());
  EXPECT_FALSE(After(Form::kAttached, trace, seconds(10)).has_value());
}

TEST(JobOverTest, OfNodesThatWereStartedHereTheirProcessesTell) {
  JobTrace trace = Gone();
  trace.is_replaced = true;
  trace.exit_code = 0;
  EXPECT_FALSE(After(Form::kNodes, trace, seconds(1000)).has_value());
}

}  // namespace
}  // namespace fsdprun::chaos
