#include "launcher/chaos/run/tcp_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "launcher/directory/listener.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;

/// For what has to come.
constexpr int kWaitMs = 30'000;

/// A link on a loop of its own, a server behind it, and clients in front.
class TcpLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = *BindListener({.address = "127.0.0.1", .port = 0});
    link_ = std::make_unique<TcpLink>(loop_, *PortOf(server_));
    port_ = *link_->Listen();
    thread_ = std::thread([this] { loop_.Run(); });
  }
  void TearDown() override {
    Do([this] { link_.reset(); });
    loop_.Stop();
    thread_.join();
  }

  /// On the loop, to its end.
  void Do(const std::function<void()>& what) {
    std::atomic<bool> is_done = false;
    loop_.Post([&] {
      what();
      is_done = true;
      is_done.notify_all();
    });
    is_done.wait(false);
  }
  UniqueFd Connect() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  UniqueFd Accept() const {
    EXPECT_TRUE(HasSomething(server_, kWaitMs));
    return UniqueFd(::accept4(server_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  static void Send(const UniqueFd& fd, const std::string& text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  /// "" for the end.
  static std::string Receive(const UniqueFd& fd, size_t size) {
    std::string text(size, '\0');
    const ssize_t n = ::recv(fd.get(), text.data(), size, MSG_WAITALL);
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  static bool HasSomething(const UniqueFd& fd, int wait_ms) {
    pollfd ready{.fd = fd.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ready, 1, wait_ms) > 0;
  }

  EventLoop loop_;
  UniqueFd server_;
  std::unique_ptr<TcpLink> link_;
  uint16_t port_ = 0;
  std::thread thread_;
};

TEST_F(TcpLinkTest, WhoIsRefusedThereIsRefusedHere) {
  server_.reset();
  const UniqueFd client = Connect();
  EXPECT_EQ(Receive(client, 1), "");
}

TEST_F(TcpLinkTest, BytesPassInBothDirectionsAndSoDoesTheEnd) {
  const UniqueFd client = Connect();
  UniqueFd server = Accept();
  const std::string much(3 << 20, 'x');
  std::thread writer([&] { Send(client, much); });
  EXPECT_TRUE(Receive(server, much.size()) == much);
  writer.join();
  Send(server, "answer");
  EXPECT_EQ(Receive(client, 6), "answer");
  ::shutdown(client.get(), SHUT_WR);
  EXPECT_EQ(Receive(server, 1), "");
  Send(server, "more");
  server.reset();
  EXPECT_EQ(Receive(client, 4), "more");
  EXPECT_EQ(Receive(client, 1), "");
}

TEST_F(TcpLinkTest, ACutIsSilenceAndNothingIsLost) {
  const UniqueFd client = Connect();
  const UniqueFd server = Accept();
  Send(client, "a");
  EXPECT_EQ(Receive(server, 1), "a");
  Do([this] { link_->Cut(); });
  Send(client, "b");
  Send(server, "c");
  const UniqueFd other = Connect();
  Send(other, "d");
  EXPECT_FALSE(HasSomething(server, 100));
  EXPECT_FALSE(HasSomething(client, 0));
  EXPECT_FALSE(HasSomething(server_, 0));
  Do([this] { link_->Heal(); });
  EXPECT_EQ(Receive(server, 1), "b");
  EXPECT_EQ(Receive(client, 1), "c");
  EXPECT_EQ(Receive(Accept(), 1), "d");
}

TEST_F(TcpLinkTest, ADelayKeepsTheOrder) {
  static constexpr Duration kLatency = milliseconds(100);
  const UniqueFd client = Connect();
  const UniqueFd server = Accept();
  Send(client, "0");
  EXPECT_EQ(Receive(server, 1), "0");
  Do([this] { link_->Delay(kLatency); });
  const MonoTime begin = MonoNow();
  Send(client, "a");
  EXPECT_EQ(Receive(server, 1), "a");
  EXPECT_GE(MonoNow() - begin, kLatency);
  Send(client, "b");
  // It may still wait when what is sent after it no longer has to.
  Do([this] { link_->Heal(); });
  Send(client, "c");
  EXPECT_EQ(Receive(server, 2), "bc");
}

}  // namespace
}  // namespace fsdprun::chaos
