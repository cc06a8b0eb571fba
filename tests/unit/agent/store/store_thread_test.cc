#include "agent/store/store_thread.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

class StoreThreadTest : public ::testing::Test {
 protected:
  static UniqueFd ConnectTo(int port) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  static void Say(const UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  /// The handshake, and a ping with this number.
  static std::string Ping(char number) {
    return std::string("\0\xCE\xF7\x85\x3C\xD", 6) + std::string({number, 0, 0, 0});
  }
  /// What comes within ten seconds, at most four bytes.
  static std::string Answer(const UniqueFd& fd) {
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char buffer[4];
    const ssize_t got = ::recv(fd.get(), buffer, sizeof(buffer), MSG_WAITALL);
    return {buffer, got > 0 ? static_cast<size_t>(got) : 0};
  }

  EventLoop loop_;
  LoopWaiter waiter_{loop_};
};

TEST_F(StoreThreadTest, ClientsAreServedWhileTheOwnersLoopDoesNotRun) {
  StoreThread store(loop_, StoreServer::Limits{});
  const absl::StatusOr<int> port = store.Listen("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_EQ(store.port(), *port);
  const UniqueFd client = ConnectTo(*port);
  Say(client, Ping(7));
  EXPECT_EQ(Answer(client), std::string("\7\0\0\0", 4));
}

TEST_F(StoreThreadTest, ForeignConnectionsComeToTheOwnersLoop) {
  std::vector<UniqueFd> foreign;
  const auto here = std::this_thread::get_id();
  StoreThread store(loop_, StoreServer::Limits{}, [&](UniqueFd fd) {
    EXPECT_EQ(std::this_thread::get_id(), here);
    foreign.push_back(std::move(fd));
    waiter_.Notice();
  });
  const absl::StatusOr<int> port = store.Listen("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  const UniqueFd agent = ConnectTo(*port);
  Say(agent, "PRI");
  ASSERT_TRUE(waiter_.RunUntil([&] { return foreign.size() == 1; }));
  char bytes[3];
  EXPECT_EQ(::recv(foreign[0].get(), bytes, 3, 0), 3);
}

TEST_F(StoreThreadTest, ResetHasDisconnectedClientsWhenItReturns) {
  StoreThread store(loop_, StoreServer::Limits{});
  const absl::StatusOr<int> port = store.Listen("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  const UniqueFd client = ConnectTo(*port);
  Say(client, Ping(1));
  ASSERT_EQ(Answer(client).size(), 4u);
  store.Reset();
  char byte = 0;
  EXPECT_EQ(::recv(client.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(StoreThreadTest, AWorldOfManyWorkersRaisesTheLimitOfConnections) {
  StoreServer::Limits limits;
  limits.max_connections = 1;
  StoreThread store(loop_, limits);
  const absl::StatusOr<int> port = store.Listen("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  const UniqueFd first = ConnectTo(*port);
  Say(first, Ping(1));
  ASSERT_EQ(Answer(first).size(), 4u);
  const UniqueFd refused = ConnectTo(*port);
  EXPECT_EQ(Answer(refused), "");
  store.ExpectClients(2);
  const UniqueFd second = ConnectTo(*port);
  Say(second, Ping(2));
  EXPECT_EQ(Answer(second).size(), 4u);
}

TEST_F(StoreThreadTest, WhatIsPostedForAnEndedOneIsDropped) {
  int calls = 0;
  UniqueFd agent;
  {
    StoreThread store(loop_, StoreServer::Limits{}, [&](UniqueFd) { ++calls; });
    const absl::StatusOr<int> port = store.Listen("127.0.0.1", 0);
    ASSERT_TRUE(port.ok()) << port.status();
    agent = ConnectTo(*port);
    Say(agent, "P");
    const UniqueFd later = ConnectTo(*port);
    Say(later, Ping(1));
    ASSERT_EQ(Answer(later).size(), 4u);
  }
  char byte = 0;
  EXPECT_EQ(::recv(agent.get(), &byte, 1, MSG_DONTWAIT), -1);  // It was posted, not dropped.
  loop_.Post([this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_EQ(calls, 0);
  EXPECT_LE(::recv(agent.get(), &byte, 1, 0), 0);
}

}  // namespace
}  // namespace fsdprun
