#include "launcher/rpc/unused_connections.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);

MonoTime At(int seconds) { return MonoTime(std::chrono::seconds(seconds)); }

std::vector<int> Fds(const std::vector<UnusedConnections::Connection>& connections) {
  std::vector<int> fds;
  for (const UnusedConnections::Connection& connection : connections) {
    fds.push_back(connection.fd);
  }
  return fds;
}

TEST(UnusedConnectionsTest, ThoseWithoutACallAreTakenWhenTheirTimeIsOver) {
  UnusedConnections unused(kPatience);
  EXPECT_EQ(unused.next(), MonoTime::max());
  unused.Add({3, "a:1"}, At(10));
  unused.Add({4, "b:1"}, At(11));
  unused.Add({5, "c:1"}, At(12));
  EXPECT_EQ(unused.next(), At(15));
  EXPECT_TRUE(unused.TakeExpired(At(14)).empty());
  unused.Used("b:1");
  EXPECT_EQ(Fds(unused.TakeExpired(At(17))), (std::vector<int>{3, 5}));
  EXPECT_EQ(unused.next(), MonoTime::max());
}

TEST(UnusedConnectionsTest, ACallOfAnAddressThatComesAgainIsOfTheYoungest) {
  UnusedConnections unused(kPatience);
  unused.Add({3, "a:1"}, At(10));
  unused.Add({4, "a:1"}, At(11));
  unused.Used("a:1");
  EXPECT_EQ(Fds(unused.TakeExpired(At(20))), std::vector<int>{3});
}

TEST(UnusedConnectionsTest, FurtherCallsAndThoseOfOthersChangeNothing) {
  UnusedConnections unused(kPatience);
  unused.Used("a:1");
  unused.Add({3, "a:1"}, At(10));
  unused.Used("a:11");
  EXPECT_EQ(Fds(unused.TakeExpired(At(15))), std::vector<int>{3});
  unused.Used("a:1");
}

}  // namespace
}  // namespace fsdprun
