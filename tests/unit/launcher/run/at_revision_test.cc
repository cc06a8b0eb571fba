#include "launcher/run/at_revision.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(AtRevisionTest, IsComputedOnceForEachRevision) {
  AtRevision<int> value;
  int computed = 0;
  const auto compute = [&computed] { return ++computed; };
  EXPECT_EQ(value.Get(0, compute), 1);  // A state has its first revision before anything happens.
  EXPECT_EQ(value.Get(0, compute), 1);
  EXPECT_EQ(value.Get(7, compute), 2);
  EXPECT_EQ(value.Get(7, compute), 2);
  EXPECT_EQ(value.Get(6, compute), 3);
}

}  // namespace
}  // namespace fsdprun
