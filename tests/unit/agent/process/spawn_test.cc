#include "agent/process/spawn.h"

#include <gtest/gtest.h>

namespace fsdprun::keeper {
namespace {

TEST(MayShareMemoryTest, NotBeforeTheKernelEndsThoseAloneThatDumpCore) {
  for (const char* release :
       {"5.16.0", "5.16-rc1", "5.19.0-32-generic", "6.1.0-18-amd64", "10.0"}) {
    EXPECT_TRUE(MayShareMemory(release)) << release;
  }
  for (const char* release :
       {"5.15.0-91-generic", "5.4.0", "4.18.0-513.el8.x86_64", "5", "", "Linux", "-1.99"}) {
    EXPECT_FALSE(MayShareMemory(release)) << release;
  }
}

}  // namespace
}  // namespace fsdprun::keeper
