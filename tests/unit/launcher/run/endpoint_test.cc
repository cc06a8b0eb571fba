#include "launcher/run/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

TEST(EndpointTest, ResolvesNumericAndLocalNames) {
  EXPECT_EQ(Resolve({"127.0.0.1", 5}).value(), (NumericEndpoint{"127.0.0.1", 5}));
  EXPECT_EQ(Resolve({"localhost", 5}).value(), (NumericEndpoint{"127.0.0.1", 5}));
  EXPECT_EQ(ToString(Resolve({"::1", 5}).value()), "[::1]:5");
}

TEST(EndpointTest, KnowsOwnAndLoopbackAddresses) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("127.9.9.9"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("10.0.0.1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_TRUE(IsOwnAddress("127.0.0.1"));
  EXPECT_FALSE(IsOwnAddress("192.0.2.1"));
}

TEST(EndpointTest, SecondListenerOfAPortIsRefusedAndTheHolderIsNamed) {
  const UniqueFd first = BindListener({"127.0.0.1", 0}).value();
  const uint16_t port = PortOf(first).value();
  const absl::Status second = BindListener({"127.0.0.1", port}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(port)));
  EXPECT_THAT(PortHolder(port), HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_EQ(PortHolder(1), "");
}

TEST(EndpointTest, ForeignAddressCannotBeBound) {
  EXPECT_TRUE(absl::IsUnavailable(BindListener({"192.0.2.1", 0}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(BindListener({"no-number", 0}).status()));
}

TEST(EndpointTest, RouteToLoopbackStartsAtLoopback) {
  EXPECT_EQ(AddressTowards({"127.0.0.1", 80}).value(), "127.0.0.1");
}

TEST(EndpointTest, ProbeTellsNobodyFromSomebodyElse) {
  const UniqueFd silent = BindListener({"127.0.0.1", 0}).value();
  const uint16_t port = PortOf(silent).value();
  const MonoTime deadline = MonoNow() + std::chrono::milliseconds(100);
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeHttp2({"127.0.0.1", port}, deadline)));
  EXPECT_TRUE(
      absl::IsUnavailable(ProbeHttp2({"127.0.0.1", 1}, MonoNow() + std::chrono::seconds(5))));
}

}  // namespace
}  // namespace fsdprun
