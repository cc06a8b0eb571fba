#include "proto/cluster/build_info.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(BuildInfoTest, ReleasesOfOneProtocolUnderstandEachOther) {
  EXPECT_EQ(Mismatch({}, {}), "");
  EXPECT_EQ(Mismatch({kProtocol, "0.9.9"}, {}), "");
}

TEST(BuildInfoTest, AMismatchNamesBothAndWhatToDo) {
  EXPECT_EQ(Mismatch({2, "0.3.0"}, {1, "0.1.0"}),
            "this node runs fsdprun 0.3.0 (protocol 2), and the coordinator fsdprun 0.1.0 "
            "(protocol 1); install the same release on all nodes");
}

TEST(BuildInfoTest, WhoNamesNoProtocolIsOlder) {
  EXPECT_EQ(Mismatch({0, ""}, {1, "0.1.0"}),
            "this node runs an older fsdprun that names no protocol, and the coordinator fsdprun "
            "0.1.0 (protocol 1); install the same release on all nodes");
}

}  // namespace
}  // namespace fsdprun
