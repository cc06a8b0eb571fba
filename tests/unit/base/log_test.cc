#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsdprun {
namespace {

std::vector<std::string>& Captured() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(LogTest, ParsesLevelWordsInAnyCase) {
  EXPECT_EQ(ParseLogLevel("debug"), LogLevel::kDebug);
  EXPECT_EQ(ParseLogLevel("Info"), LogLevel::kInfo);
  EXPECT_EQ(ParseLogLevel("ERROR"), LogLevel::kError);
  EXPECT_EQ(ParseLogLevel("nonsense"), LogLevel::kWarning);
  EXPECT_EQ(ParseLogLevel(""), LogLevel::kWarning);
}

TEST(LogTest, OnlyLinesAtOrAboveTheLevelReachTheSink) {
  Captured().clear();
  SetLogSink([](LogLevel, absl::string_view line) { Captured().emplace_back(line); });
  Log(LogLevel::kInfo, "hidden");
  Log(LogLevel::kWarning, "seen key=1");
  SetLogLevel(LogLevel::kError);
  Log(LogLevel::kWarning, "hidden too");
  SetLogLevel(LogLevel::kWarning);
  EXPECT_EQ(Captured(), std::vector<std::string>{"fsdprun WARNING seen key=1"});
}

}  // namespace
}  // namespace fsdprun
