#include "launcher/run/machine.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(MachineTest, VisibleGpusAreThoseThatCudaShows) {
  EXPECT_EQ(VisibleGpus(8, "0,1,5"), 3);
  EXPECT_EQ(VisibleGpus(8, " 3 "), 1);
  EXPECT_EQ(VisibleGpus(8, "0,-1,1"), 1);
  EXPECT_EQ(VisibleGpus(8, "-1"), 0);
  EXPECT_EQ(VisibleGpus(8, ""), 0);
  EXPECT_EQ(VisibleGpus(2, "1,2,0"), 1);
  EXPECT_EQ(VisibleGpus(8, "GPU-8932f937,MIG-1"), 2);
  EXPECT_EQ(VisibleGpus(0, "GPU-8932f937"), 0);
}

}  // namespace
}  // namespace fsdprun
