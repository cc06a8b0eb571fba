#include "launcher/run/refusal_log.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(RefusalLogTest, OneLinePerIntervalWithTheCountOfTheOthers) {
  RefusalLog log;
  const MonoTime start{};
  EXPECT_EQ(log.Add("a caller at A", start), "refused a caller at A");
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(log.Add("x", start + std::chrono::milliseconds(i)), std::nullopt);
  }
  EXPECT_EQ(log.Add("x", start + RefusalLog::kInterval - Duration(1)), std::nullopt);
  EXPECT_EQ(log.Add("a caller at B", start + RefusalLog::kInterval),
            "refused a caller at B; and 501 more before it");
  EXPECT_EQ(log.Rest(), std::nullopt);
  EXPECT_EQ(log.Add("y", start + RefusalLog::kInterval * 2), "refused y");
}

TEST(RefusalLogTest, RemainingRefusalsAreCountedAtTheEnd) {
  RefusalLog log;
  EXPECT_EQ(log.Rest(), std::nullopt);
  log.Add("a", MonoTime{});
  log.Add("b", MonoTime{});
  EXPECT_EQ(log.Rest(), "refused 1 more");
  EXPECT_EQ(log.Rest(), std::nullopt);
}

}  // namespace
}  // namespace fsdprun
