#include "launcher/directory/numeric_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "launcher/directory/host_lookup.h"
#include "tests/unit/base/failing_system_call.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

using Addresses = std::vector<std::string>;

TEST(HostLookupTest, LooksUpNumericAndLocalNames) {
  EXPECT_EQ(LookUpHost("127.0.0.1", {}).value(), Addresses{"127.0.0.1"});
  EXPECT_EQ(LookUpHost("localhost", {}).value().front(), "127.0.0.1");
  EXPECT_EQ(LookUpHost("::1", {}).value(), Addresses{"::1"});
  EXPECT_EQ(ToString(NumericEndpoint{"::1", 5}), "[::1]:5");
  const absl::Status unknown = LookUpHost("no-such-host.invalid", {}).status();
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no-such-host.invalid"));
}

TEST(HostLookupTest, MachineWithoutRoomForAThreadIsToldOf) {
  bool is_filtered = false;
  absl::Status status;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_clone3, .error = EAGAIN}) &&
                  FailFromNowOn({.number = SYS_clone, .error = EAGAIN});
    status = LookUpHost("127.0.0.1", {}).status();
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no thread"));
}

TEST(HostLookupTest, OnlyWhatMayBeANameIsWaitedFor) {
  const std::string part(63, 'a');
  for (const std::string& name :
       {std::string("node0"), std::string("node-0.jobs.svc.cluster.local"), std::string("a_b.c."),
        std::string("10.0.0.1.nip.io"), std::string("4ever"), part + ".b"}) {
    EXPECT_TRUE(MayBeHostName(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string("a..b"), std::string(".a"),
        std::string("node 0"), std::string("node0:1"), std::string("http://node0"), part + "a",
        std::string("10.0.0.256"), std::string("fd00::g")}) {
    EXPECT_FALSE(MayBeHostName(name)) << name;
    const absl::Status status = AwaitHost(name, {.patience = std::chrono::hours(1)}).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << name << status;
  }
  EXPECT_FALSE(MayBeHostName(part + "." + part + "." + part + "." + part));
}

TEST(HostLookupTest, AWaitForANameEndsWithPatienceOrASignal) {
  const std::string unknown = "no-such-host.invalid";
  const absl::Status late =
      AwaitHost(unknown, {.patience = std::chrono::milliseconds(100)}).status();
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("'no-such-host.invalid' within 0.1 s: "));
  int polls = 0;
  const AwaitHostOptions options{.patience = std::chrono::hours(1),
                                 .is_cancelled = [&] { return ++polls > 3; }};
  EXPECT_TRUE(absl::IsCancelled(AwaitHost(unknown, options).status()));
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

TEST(NumericAddressTest, RoutableAddressIsFoundWhereAnInterfaceHasOne) {
  const absl::StatusOr<std::string> address = RoutableAddress();
  if (const Addresses on_networks = AddressesOnNetworks(); on_networks.empty()) {
    EXPECT_TRUE(absl::IsNotFound(address.status())) << address.status();
  } else {
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_THAT(on_networks, ::testing::Contains(*address));
  }
}

TEST(NumericAddressTest, KnowsOwnAndLoopbackAddresses) {
  EXPECT_TRUE(IsLoopback("127.0.0.1"));
  EXPECT_TRUE(IsLoopback("127.9.9.9"));
  EXPECT_TRUE(IsLoopback("::1"));
  EXPECT_FALSE(IsLoopback("10.0.0.1"));
  EXPECT_FALSE(IsLoopback("0.0.0.0"));
  EXPECT_TRUE(IsOwnAddress("127.0.0.1"));
  EXPECT_FALSE(IsOwnAddress("192.0.2.1"));
}

TEST(NumericAddressTest, RouteToLoopbackStartsAtLoopback) {
  EXPECT_EQ(AddressTowards({"127.0.0.1", 80}).value(), "127.0.0.1");
}

TEST(NumericAddressTest, MappedAddressesAreShownAsIpv4) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
  mapped.sin6_addr.s6_addr[12] = 10;
  mapped.sin6_addr.s6_addr[15] = 7;
  EXPECT_EQ(AddressText(reinterpret_cast<const sockaddr*>(&mapped)), "10.0.0.7");
}

}  // namespace
}  // namespace fsdprun
