#include "launcher/chaos/plan/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun::chaos {
namespace {

using ::testing::HasSubstr;

TEST(ScheduleTest, WhatIsWrongIsNamedWithItsPlace) {
  for (const auto& [text, words] : std::vector<std::pair<const char*, std::vector<const char*>>>{
           {"", {"no fault"}},
           {"# nothing\n", {"no fault"}},
           {"5\n", {"line 1", "TIME FAULT"}},
           {"1 kill worker\nsoon kill worker\n", {"line 2", "'soon'"}},
           {"5 shoot worker", {"line 1", "'shoot'", "kill, stop"}},
           {"5 kill everybody", {"'everybody'"}},
           {"5 kill worker:x", {"'x'", "rank"}},
           {"5 kill worker 3s", {"'3s'", "takes no time"}},
           {"5 kill", {"kill cannot be done"}},
           {"5 fill worker 3", {"fill cannot be done to worker"}},
           {"5 stop keeper 3", {"stop cannot be done to keeper"}},
           {"5 partition worker 3", {"partition cannot be done to worker"}},
           {"5 stop worker 3 4", {"'4'", "delay"}},
           {"5 delay agent 3 200ms more", {"'more'"}},
           {"[", {"JSON"}},
           {"[7]", {"entry 1", "object"}},
           {R"([{"fault":"kill","target":"worker"}])", {"entry 1", "no time"}},
           {R"([{"at":1,"fault":"kill","who":"worker"}])", {"entry 1", "'who'"}},
           {R"([{"at":[1],"fault":"kill"}])", {"'at'"}}}) {
    const absl::StatusOr<FaultPlan> plan = ParseSchedule(text, 0);
    ASSERT_EQ(plan.status().code(), absl::StatusCode::kOutOfRange) << text;
    for (const char* word : words) {
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr(word)) << text;
    }
  }
}

TEST(ScheduleTest, LinesAreFaultsInOrderOfTime) {
  const absl::StatusOr<FaultPlan> plan = ParseSchedule(
      "20s stop agent:1 4s  # beyond its lease\n"
      "\n"
      "5 kill worker:3\n"
      "1min delay agent 10s 200ms\n"
      "90s fill 5s\r\n"
      "100 partition 3\n"
      "2min corrupt\n",
      0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->has_fixed_times);
  EXPECT_EQ(TextOf(*plan),
            "1. at 5 s: kill worker 3\n"
            "2. at 20 s: stop agent 1 for 4 s\n"
            "3. at 1 min: delay agent by 0.2 s for 10 s\n"
            "4. at 1 min 30 s: fill for 5 s\n"
            "5. at 1 min 40 s: partition agent for 3 s\n"
            "6. at 2 min: corrupt\n");
}

TEST(ScheduleTest, JsonSaysTheSame) {
  const absl::StatusOr<FaultPlan> lines =
      ParseSchedule("5 kill worker:3\n20 delay agent 4 100ms\n", 1);
  const absl::StatusOr<FaultPlan> objects = ParseSchedule(
      R"( [{"at": 5, "fault": "kill", "target": "worker:3"},
           {"at": "20s", "fault": "delay", "target": "agent", "length": 4, "latency": 0.1}])",
      1);
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_TRUE(objects.ok()) << objects.status();
  EXPECT_EQ(*lines, *objects);
}

TEST(ScheduleTest, NumbersOfJsonKeepAllTheirDigits) {
  const absl::StatusOr<FaultPlan> plan =
      ParseSchedule(R"([{"at": 12345.678, "fault": "kill", "target": "worker"}])", 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(std::chrono::round<std::chrono::milliseconds>(plan->faults[0].at).count(), 12345678);
}

TEST(ScheduleTest, WhoIsNotNamedFollowsFromTheSeed) {
  const auto pick = [](uint64_t seed) {
    return ParseSchedule("5 kill worker", seed)->faults.front().pick;
  };
  EXPECT_EQ(pick(1), pick(1));
  EXPECT_NE(pick(1), pick(2));
}

}  // namespace
}  // namespace fsdprun::chaos
