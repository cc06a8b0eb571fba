#include "launcher/directory/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "launcher/directory/http2_probe.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

TEST(ListenerTest, SecondListenerOfAPortIsRefusedAndTheHolderIsNamed) {
  const UniqueFd first = BindListener({"127.0.0.1", 0}).value();
  const uint16_t port = PortOf(first).value();
  const absl::Status second = BindListener({"127.0.0.1", port}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(port)));
  EXPECT_THAT(PortHolder(port), HasSubstr("process " + std::to_string(::getpid())));
  EXPECT_EQ(PortHolder(1), "");
}

TEST(ListenerTest, ForeignAddressCannotBeBound) {
  EXPECT_TRUE(absl::IsUnavailable(BindListener({"192.0.2.1", 0}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(BindListener({"no-number", 0}).status()));
}

TEST(ListenerTest, AllAddressesCollideWithOneOfThem) {
  const UniqueFd one = BindListener({"127.0.0.1", 0}).value();
  const absl::Status all = BindListener({"::", PortOf(one).value()}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(all)) << all;
  EXPECT_THAT(std::string(all.message()), HasSubstr("of all addresses"));
}

TEST(ListenerTest, OneOfSeveralAddressesDecidesWhoOwnsThePort) {
  const std::vector<std::string> addresses{"192.0.2.1", "127.0.0.1", "127.0.0.2"};
  const std::vector<UniqueFd> first = BindListeners(addresses, 0).value();
  ASSERT_EQ(first.size(), 2u);
  const uint16_t port = PortOf(first.front()).value();
  EXPECT_EQ(PortOf(first.back()).value(), port);
  EXPECT_TRUE(absl::IsAlreadyExists(BindListeners(addresses, port).status()));
}

TEST(ListenerTest, AStrangerOnALaterAddressIsPassedOver) {
  // Addresses that no other test uses: a port that is free on one is free on the other.
  const UniqueFd stranger = BindListener({"127.31.7.2", 0}).value();
  const uint16_t port = PortOf(stranger).value();
  EXPECT_EQ(BindListeners({"127.31.7.1", "127.31.7.2"}, port).value().size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(BindListeners({"192.0.2.1"}, 0).status()));
}

// The result of probing a server that replies with `answer` and closes the connection.
absl::Status ProbeServerThatSays(const std::string& answer, bool uses_tls = false) {
  const UniqueFd listener = BindListener({"127.0.0.1", 0}).value();
  std::thread server([&] {
    pollfd waits{.fd = listener.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&waits, 1, 20'000), 1);
    const UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    char hello[4096];
    EXPECT_GT(::read(connection.get(), hello, sizeof(hello)), 0);
    EXPECT_EQ(::send(connection.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
  });
  absl::Status status = ProbeCoordinator({"127.0.0.1", PortOf(listener).value()}, uses_tls,
                                         MonoNow() + std::chrono::seconds(20));
  server.join();
  return status;
}

TEST(Http2ProbeTest, ProbeRefusesOnlyAnswersThatAreNotHttp2) {
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays("HTTP/1.1 400 no\r\n\r\n")));
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays("-ERR\r\n")));
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays(std::string(9, '\0'))));
  EXPECT_TRUE(ProbeServerThatSays(std::string("\0\0\0\4\0\0\0\0\0", 9)).ok());
  EXPECT_TRUE(absl::IsUnavailable(ProbeServerThatSays("")));
}

TEST(Http2ProbeTest, EndsThatDoNotAgreeAboutTlsAreTold) {
  const std::string settings("\0\0\0\4\0\0\0\0\0", 9);
  const std::string server_hello("\x16\3\3\0\x7a\2\0\0\x76", 9);
  const std::string alert("\x15\3\1\0\2\2\x46", 7);
  EXPECT_TRUE(ProbeServerThatSays(server_hello, true).ok());
  EXPECT_TRUE(ProbeServerThatSays(alert, true).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(ProbeServerThatSays(settings, true)));
  EXPECT_TRUE(absl::IsPermissionDenied(ProbeServerThatSays(alert + alert)));
  EXPECT_TRUE(absl::IsFailedPrecondition(ProbeServerThatSays("HTTP/1.1 400 no\r\n\r\n", true)));
  EXPECT_TRUE(absl::IsUnavailable(ProbeServerThatSays("", true)));
}

TEST(Http2ProbeTest, ProbeOfABusyOrMissingServerMayBeRetried) {
  const UniqueFd silent = BindListener({"127.0.0.1", 0}).value();
  const uint16_t port = PortOf(silent).value();
  const MonoTime deadline = MonoNow() + std::chrono::milliseconds(100);
  EXPECT_TRUE(absl::IsUnavailable(ProbeCoordinator({"127.0.0.1", port}, false, deadline)));
  EXPECT_TRUE(absl::IsUnavailable(
      ProbeCoordinator({"127.0.0.1", 1}, false, MonoNow() + std::chrono::seconds(5))));
}

}  // namespace
}  // namespace fsdprun
