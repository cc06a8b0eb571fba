#include "fsdpctl/jobs/job_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<JobEntry> Jobs() {
  return {{.run_id = "one", .pid = 11}, {.run_id = "two", .pid = 12}, {.run_id = "two", .pid = 13}};
}

std::string Refusal(const std::vector<JobEntry>& jobs, const std::string& name) {
  const absl::StatusOr<JobEntry> chosen = ChooseJob(jobs, name);
  EXPECT_TRUE(absl::IsNotFound(chosen.status()));
  return std::string(chosen.status().message());
}

TEST(JobChoiceTest, AJobHasARunIdAndAPid) {
  EXPECT_EQ(ChooseJob(Jobs(), "one")->pid, 11);
  EXPECT_EQ(ChooseJob(Jobs(), "13")->pid, 13);
}

TEST(JobChoiceTest, TheOnlyJobNeedsNoName) {
  EXPECT_EQ(ChooseJob({{.run_id = "one", .pid = 11}}, "")->pid, 11);
}

TEST(JobChoiceTest, WhatThereIsIsSaid) {
  EXPECT_THAT(Refusal({}, ""), HasSubstr("--rdzv-endpoint"));
  EXPECT_THAT(Refusal(Jobs(), ""), AllOf(HasSubstr("several"), HasSubstr("'one' (pid 11)")));
  EXPECT_THAT(Refusal(Jobs(), "three"), AllOf(HasSubstr("'three'"), HasSubstr("'two' (pid 12)")));
  EXPECT_THAT(Refusal(Jobs(), "two"), AllOf(HasSubstr("its pid"), HasSubstr("'two' (pid 13)")));
  EXPECT_THAT(Refusal(std::vector<JobEntry>(9, JobEntry{.run_id = "many"}), ""), HasSubstr("..."));
}

}  // namespace
}  // namespace fsdprun
