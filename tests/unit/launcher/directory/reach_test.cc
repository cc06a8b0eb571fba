#include "launcher/directory/reach.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "launcher/directory/listener.h"

namespace fsdprun {
namespace {

MonoTime In(int ms) { return MonoNow() + std::chrono::milliseconds(ms); }

TEST(ReachTest, TheFirstThatListensIsFound) {
  const UniqueFd listener = BindListener({"127.0.0.1", 0}).value();
  const NumericEndpoint here{"127.0.0.1", PortOf(listener).value()};
  // 192.0.2.1 never answers, or there is no way to it; nothing listens on port 1.
  std::vector<NumericEndpoint> endpoints{{"127.0.0.1", 1}, {"192.0.2.1", 1}, here};
  const Reach reach = ReachAny(endpoints, In(20'000), nullptr);
  EXPECT_EQ(reach.kind, Reach::Kind::kConnects);
  EXPECT_EQ(reach.index, 2u);
  MoveReachableToFront(&endpoints, In(20'000), nullptr);
  EXPECT_EQ(endpoints, (std::vector<NumericEndpoint>{here, {"127.0.0.1", 1}, {"192.0.2.1", 1}}));
}

TEST(ReachTest, RefusalByAllIsTold) {
  EXPECT_EQ(ReachAny({{"127.0.0.1", 1}, {"127.0.0.2", 1}}, In(20'000), nullptr).kind,
            Reach::Kind::kRefused);
}

TEST(ReachTest, ADeadlineOrASignalEndsTheSearch) {
  const std::vector<NumericEndpoint> nowhere{{"192.0.2.1", 1}};
  EXPECT_EQ(ReachAny(nowhere, MonoNow(), nullptr).kind, Reach::Kind::kSilent);
  EXPECT_EQ(ReachAny(nowhere, In(20'000), [] { return true; }).kind, Reach::Kind::kSilent);
}

TEST(ReachTest, AddressesWithoutARouteArePassedOver) {
  EXPECT_EQ(AddressTowardsAny({{"no number", 1}, {"127.0.0.1", 1}}).value(), "127.0.0.1");
  EXPECT_FALSE(AddressTowardsAny({{"no number", 1}}).ok());
}

}  // namespace
}  // namespace fsdprun
