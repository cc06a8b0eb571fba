#include "launcher/daemon/revivals.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(RevivalsTest, AProcessThatDiesAsSoonAsItRunsIsGivenUp) {
  Revivals revivals;
  MonoTime now{std::chrono::hours(1)};
  for (int i = 0; i < Revivals::kMostInARow; ++i) {
    EXPECT_TRUE(revivals.Take(now)) << i;
    now += std::chrono::milliseconds(10);
  }
  EXPECT_FALSE(revivals.Take(now));
}

TEST(RevivalsTest, OneThatHasRunForAWhileBeginsANewRow) {
  Revivals revivals;
  MonoTime now{std::chrono::hours(1)};
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(revivals.Take(now));
    now += i % Revivals::kMostInARow == Revivals::kMostInARow - 1 ? Revivals::kHealthyAfter
                                                                  : std::chrono::milliseconds(10);
  }
}

}  // namespace
}  // namespace fsdprun
