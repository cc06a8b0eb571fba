#include "fsdp_runtime/src/comm/own_address.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<NetworkInterface> kInterfaces = {
    {"docker0", "172.17.0.1"}, {"eth0", "10.0.0.7"}, {"eth10", "10.1.0.7"}, {"ib0", "10.9.0.7"}};

// A name that /etc/hosts gives to the machine itself, as on Debian, is no reason to fail.
TEST(OwnAddressTest, IsThatOfTheRouteUnlessItIsTheLoopback) {
  EXPECT_EQ(choose_address({"node0", "10.1.0.7", kInterfaces}), "10.1.0.7");
  EXPECT_EQ(choose_address({"node0", "127.0.1.1", kInterfaces}), "10.0.0.7");
  EXPECT_EQ(choose_address({"node0", "::1", kInterfaces}), "10.0.0.7");
}

TEST(OwnAddressTest, IsOnTheInterfaceThatNcclUses) {
  EXPECT_EQ(choose_address({"node0", "10.0.0.7", kInterfaces, "ib"}), "10.9.0.7");
  EXPECT_EQ(choose_address({"node0", "127.0.1.1", kInterfaces, "^docker,eth"}), "10.9.0.7");
}

TEST(OwnAddressTest, ErrorsSayWhatToSet) {
  try {
    choose_address({"node0", "127.0.1.1", {kInterfaces[0]}});
    FAIL() << "others cannot reach it";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'node0' resolves to 127.0.1.1"), HasSubstr(" NCCL_SOCKET_IFNAME"),
                      HasSubstr("GLOO_SOCKET_IFNAME"), HasSubstr("MASTER_ADDR")));
  }
  try {
    choose_address({"node0", "10.0.0.7", kInterfaces, "=ib"});
    FAIL() << "there is no such interface";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("NCCL_SOCKET_IFNAME==ib"));
  }
}

TEST(OwnAddressTest, NamesOfInterfacesAreThoseOfNccl) {
  EXPECT_TRUE(is_used_by_nccl("eth", "eth10"));
  EXPECT_TRUE(is_used_by_nccl("ib,eth1", "eth10"));
  EXPECT_FALSE(is_used_by_nccl("=eth1", "eth10"));
  EXPECT_TRUE(is_used_by_nccl("=ib0,eth10", "eth10"));
  EXPECT_FALSE(is_used_by_nccl("^docker,eth", "eth10"));
  EXPECT_TRUE(is_used_by_nccl("^docker", "eth10"));
  EXPECT_TRUE(is_used_by_nccl("^=eth1", "eth10"));
  EXPECT_FALSE(is_used_by_nccl("^=eth1", "eth1"));
}

}  // namespace
}  // namespace fsdp
