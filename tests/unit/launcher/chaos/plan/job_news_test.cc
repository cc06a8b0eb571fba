#include "launcher/chaos/plan/job_news.h"

#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

constexpr int64_t kSince = 1'700'000'000'000;  // 2023-11-14T22:13:20.000Z

TEST(JobNewsTest, WhatIsNoEventIsNoNews) {
  for (const char* line : {"", "{", "7", "[]", R"({"event":7})", R"({"event":"world_formed"})"}) {
    EXPECT_EQ(NewsIn(line, kSince), JobNews{}) << line;
  }
}

TEST(JobNewsTest, AFailureIsToldInTheJobsWords) {
  EXPECT_EQ(
      NewsIn(R"({"time":"2023-11-14T22:13:20.000Z","event":"failure","what":"killed"})", kSince),
      JobNews{.failure = "killed"});
  EXPECT_EQ(NewsIn(R"({"time":"soon","event":"failure","what":"killed"})", kSince),
            JobNews{.failure = "killed"});
  EXPECT_EQ(NewsIn(R"({"event":"failure","what":7})", kSince), JobNews{.failure = ""});
}

// Of a job that ran already the coordinator tells all that it still knows.
TEST(JobNewsTest, AFailureFromBeforeIsNoNews) {
  EXPECT_EQ(
      NewsIn(R"({"time":"2023-11-14T22:13:19.999Z","event":"failure","what":"killed"})", kSince),
      JobNews{});
}

TEST(JobNewsTest, TheEndIsNewsWheneverItWas) {
  EXPECT_EQ(
      NewsIn(R"({"time":"2023-11-14T22:13:19.999Z","event":"job_finished","exit_code":3})", kSince),
      JobNews{.exit_code = 3});
  EXPECT_EQ(NewsIn(R"({"event":"job_finished"})", kSince), JobNews{.exit_code = 1});
}

}  // namespace
}  // namespace fsdprun::chaos
