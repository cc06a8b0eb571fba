#include "worker/metrics/fault_notice.h"

#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

using std::chrono::seconds;

TEST(FaultNoticeTest, ToldAtOnceThenOnceAMinute) {
  FaultNotice notice;
  const FaultNotice::Time start{};
  EXPECT_EQ(notice.Tell("full", start), "full");
  EXPECT_EQ(notice.Tell("full", start), std::nullopt);
  EXPECT_EQ(notice.Tell("full", start + seconds(59)), std::nullopt);
  EXPECT_EQ(notice.Tell("still full", start + seconds(60)),
            "still full (and 2 times before, since it was told last)");
  EXPECT_EQ(notice.Tell("full", start + seconds(61)), std::nullopt);
  EXPECT_EQ(notice.Tell("full", start + seconds(180)),
            "full (and once before, since it was told last)");
  EXPECT_EQ(notice.Tell("full", start + seconds(300)), "full");
}

}  // namespace
}  // namespace fsdprun::worker
