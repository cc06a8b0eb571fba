#include "launcher/run/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

using Addresses = std::vector<std::string>;

TEST(EndpointTest, LooksUpNumericAndLocalNames) {
  EXPECT_EQ(LookUpHost("127.0.0.1", {}).value(), Addresses{"127.0.0.1"});
  EXPECT_EQ(LookUpHost("localhost", {}).value().front(), "127.0.0.1");
  EXPECT_EQ(LookUpHost("::1", {}).value(), Addresses{"::1"});
  EXPECT_EQ(ToString(NumericEndpoint{"::1", 5}), "[::1]:5");
  const absl::Status unknown = LookUpHost("no-such-host.invalid", {}).status();
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no-such-host.invalid"));
}

void ExpectChoice(const AddressChoice& choice, const std::string& address, bool hides) {
  EXPECT_EQ(choice.address, address);
  EXPECT_EQ(choice.resolves_to_loopback_here, hides) << address;
}

TEST(EndpointTest, ChoosesAnAddressThatOthersReach) {
  ExpectChoice(ChooseAddress("node0", "node0", {"127.0.1.1", "10.0.0.7"}), "10.0.0.7", false);
  ExpectChoice(ChooseAddress("node0", "node0", {"127.0.1.1"}), "127.0.1.1", true);
  ExpectChoice(ChooseAddress("node0.site", "NODE0", {"127.0.1.1"}), "127.0.1.1", true);
  ExpectChoice(ChooseAddress("alias", "node0", {"127.0.0.1"}), "127.0.0.1", false);
  ExpectChoice(ChooseAddress("127.0.1.1", "127", {"127.0.1.1"}), "127.0.1.1", false);
  ExpectChoice(ChooseAddress("localhost", "localhost", {"127.0.0.1", "::1"}), "127.0.0.1", false);
  ExpectChoice(ChooseAddress("10.0.0.1", "node0", {"10.0.0.1"}), "10.0.0.1", false);
}

// IPv4 addresses of interfaces that are up and not loopback.
Addresses AddressesOnNetworks() {
  Addresses found;
  ifaddrs* interfaces = nullptr;
  EXPECT_EQ(::getifaddrs(&interfaces), 0);
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    char text[NI_MAXHOST];
    if (entry->ifa_addr != nullptr && entry->ifa_addr->sa_family == AF_INET &&
        (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_LOOPBACK) == 0 &&
        ::getnameinfo(entry->ifa_addr, sizeof(sockaddr_in), text, sizeof(text), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      found.emplace_back(text);
    }
  }
  ::freeifaddrs(interfaces);
  return found;
}

TEST(EndpointTest, RoutableAddressIsFoundWhereAnInterfaceHasOne) {
  const absl::StatusOr<std::string> address = RoutableAddress();
  if (const Addresses on_networks = AddressesOnNetworks(); on_networks.empty()) {
    EXPECT_TRUE(absl::IsNotFound(address.status())) << address.status();
  } else {
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_THAT(on_networks, ::testing::Contains(*address));
  }
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

// The result of probing a server that replies with `answer` and closes the connection.
absl::Status ProbeServerThatSays(const std::string& answer) {
  const UniqueFd listener = BindListener({"127.0.0.1", 0}).value();
  std::thread server([&] {
    pollfd waits{.fd = listener.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waits, 1, 20'000), 1);
    const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char hello[64];
    EXPECT_GT(::read(connection.get(), hello, sizeof(hello)), 0);
    EXPECT_EQ(::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
  });
  absl::Status status =
      ProbeHttp2({"127.0.0.1", PortOf(listener).value()}, MonoNow() + std::chrono::seconds(20));
  server.join();
  return status;
}

TEST(EndpointTest, ProbeRefusesOnlyAnswersThatAreNotHttp2) {
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays("HTTP/1.1 400 no\r\n\r\n")));
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays("-ERR\r\n")));
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays(std::string(9, '\0'))));
  EXPECT_TRUE(ProbeServerThatSays(std::string("\0\0\0\4\0\0\0\0\0", 9)).ok());
  EXPECT_TRUE(absl::IsUnavailable(ProbeServerThatSays("")));
}

TEST(EndpointTest, ProbeOfABusyOrMissingServerMayBeRetried) {
  const UniqueFd silent = BindListener({"127.0.0.1", 0}).value();
  const uint16_t port = PortOf(silent).value();
  const MonoTime deadline = MonoNow() + std::chrono::milliseconds(100);
  EXPECT_TRUE(absl::IsUnavailable(ProbeHttp2({"127.0.0.1", port}, deadline)));
  EXPECT_TRUE(
      absl::IsUnavailable(ProbeHttp2({"127.0.0.1", 1}, MonoNow() + std::chrono::seconds(5))));
}

}  // namespace
}  // namespace fsdprun
