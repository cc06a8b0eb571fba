#include "fsdpctl/slurm/slurm_values.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace fsdprun {
namespace {

TEST(SlurmValuesTest, NodesAreANumberOrARange) {
  EXPECT_EQ(ToNodeRange({"--nodes", "3"}).value(), (NodeRange{3, 3}));
  EXPECT_EQ(ToNodeRange({"--nodes", "2:4"}).value(), (NodeRange{2, 4}));
  EXPECT_EQ(ToNodeRange({"--nodes", "2-4"}).value(), (NodeRange{2, 4}));
  for (const char* text : {"", "0", "x", "4:2", "2:", ":2", "-2", "1:2:3", "99999999999"}) {
    EXPECT_EQ(ToNodeRange({"--nodes", text}).status().code(), absl::StatusCode::kOutOfRange)
        << text;
  }
}

TEST(SlurmValuesTest, TimeLimitsAreSbatchs) {
  for (const char* text :
       {"10", "10:00", "1:10:00", "2-4", "2-4:30", "2-4:30:15", "UNLIMITED", "infinite", "-1"}) {
    EXPECT_TRUE(IsTimeLimit(text)) << text;
  }
  for (const char* text : {"", "8h", "1:2:3:4", "2-", "-4", "a-4", "10:"}) {
    EXPECT_FALSE(IsTimeLimit(text)) << text;
  }
}

TEST(SlurmValuesTest, TimeLimitsAreCountedInMinutes) {
  const std::pair<const char*, int64_t> limits[] = {
      {"10", 600},     {"10:00", 600},     {"10:01", 660},        {"1:10:00", 4200},
      {"2-4", 187200}, {"2-4:30", 189000}, {"2-4:30:15", 189060}, {"0:01", 60}};
  for (const auto& [text, seconds] : limits) {
    EXPECT_EQ(TimeLimitSeconds(text), seconds) << text;
  }
  for (const char* text : {"UNLIMITED", "infinite", "-1", "0", "0:00", "8h", "", "99999999999"}) {
    EXPECT_EQ(TimeLimitSeconds(text), std::nullopt) << text;
  }
}

TEST(SlurmValuesTest, SignalsComeAMinuteBeforeTheLimitUnlessTheySayMore) {
  EXPECT_EQ(SignalSeconds("B:USR1@120"), 120);
  EXPECT_EQ(SignalSeconds("USR1"), 60);
}

TEST(SlurmValuesTest, SignalRequestsAreSbatchs) {
  for (const char* text : {"USR1", "B:USR1@120", "BR:usr2@60", "10", "SIGTERM@5", "R:10@60"}) {
    EXPECT_TRUE(IsSignalRequest(text)) << text;
  }
  for (const char* text : {"", "USR9", "X:USR1", "B:USR1@", "B:USR1@2m", "@60", "B:"}) {
    EXPECT_FALSE(IsSignalRequest(text)) << text;
  }
}

TEST(SlurmValuesTest, JobsAreNamedByNumbers) {
  EXPECT_TRUE(IsJobName("4711"));
  EXPECT_TRUE(IsJobName("4711_2"));
  for (const char* text : {"", "x", "4711_", "_2", "../4711", "4711 "}) {
    EXPECT_FALSE(IsJobName(text)) << text;
  }
}

}  // namespace
}  // namespace fsdprun
