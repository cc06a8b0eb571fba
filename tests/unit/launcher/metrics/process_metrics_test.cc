#include "launcher/metrics/process_metrics.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

constexpr ProcessUnits kUnits = {.ticks_per_s = 100, .page_bytes = 4096, .boot_unix_s = 1000};
constexpr char kStat[] =
    "4711 (a) 9 (b) S 1 2 3 4 5 6 7 8 9 10 250 150 13 14 15 16 17 18 500 20 25 22 23\n";

TEST(ProcessUsageTest, WhatIsNoneIsRefused) {
  EXPECT_FALSE(ParseProcessUsage("", kUnits).has_value());
  EXPECT_FALSE(ParseProcessUsage("4711 (a) S 1 2 3", kUnits).has_value());
  EXPECT_FALSE(
      ParseProcessUsage("1 (a) S 1 2 3 4 5 6 7 8 9 10 x 150 13 14 15 16 17 18 500 20 25 22", kUnits)
          .has_value());
}

TEST(ProcessUsageTest, ANameMayHoldAnything) {
  const auto usage = ParseProcessUsage(kStat, kUnits);
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->cpu_s, 4);
  EXPECT_EQ(usage->began_unix_s, 1005);
  EXPECT_EQ(usage->resident_bytes, 25U * 4096);
}

}  // namespace
}  // namespace fsdprun
