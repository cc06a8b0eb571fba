#include "agent/store/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "fsdp_runtime/store/store_client.h"

extern char** environ;

namespace fsdprun {
namespace {

using namespace std::chrono_literals;
using fsdp::StoreClient;
using fsdp::StoreError;
using fsdp::StoreTimeout;

std::chrono::steady_clock::time_point In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

/// A server on a loop thread of its own; the test threads are its clients.
class StoreServerTest : public testing::Test {
 protected:
  void Start(const StoreServer::Limits& limits = {},
             StoreServer::ForeignConnection on_foreign = nullptr) {
    server_ = std::make_unique<StoreServer>(loop_, limits, std::move(on_foreign));
    const auto port = server_->Listen("127.0.0.1", 0);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *port;
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~StoreServerTest() override {
    if (thread_.joinable()) {
      OnLoop([this] { server_.reset(); });
      loop_.Stop();
      thread_.join();
    }
  }
  void OnLoop(const std::function<void()>& closure) {
    std::promise<void> done;
    loop_.Post([&] {
      closure();
      done.set_value();
    });
    done.get_future().wait();
  }
  size_t ConnectionCount() {
    size_t count = 0;
    OnLoop([&] { count = server_->connection_count(); });
    return count;
  }
  StoreClient Client() const { return {"127.0.0.1", port_, 10s}; }
  UniqueFd RawConnection() const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  /// Whether the server ends the connection, whatever it sends before.
  static bool IsEnded(const UniqueFd& fd) {
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    char buffer[4096];
    ssize_t got = 0;
    while ((got = ::recv(fd.get(), buffer, sizeof(buffer), 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

  EventLoop loop_;
  std::unique_ptr<StoreServer> server_;
  int port_ = 0;
  std::thread thread_;
};

std::string Greeting() { return std::string("\0\xCE\xF7\x85\x3C", 5); }

void SendText(const UniqueFd& fd, const std::string& text) {
  [[maybe_unused]] const ssize_t n = ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

/// The next `size` bytes, or fewer if they do not come within ten seconds.
std::string Receive(const UniqueFd& fd, size_t size) {
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string bytes(size, '?');
  const ssize_t got = ::recv(fd.get(), bytes.data(), size, MSG_WAITALL);
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

TEST_F(StoreServerTest, ServesEveryOperationOfTheNativeClient) {
  Start();
  StoreClient client = Client();
  client.set("a", "1");
  EXPECT_EQ(client.get("a", In(10s)), "1");
  EXPECT_EQ(client.add("n", 5), 5);
  EXPECT_EQ(client.add("n", -6), -1);
  EXPECT_TRUE(client.check({"a", "n"}));
  EXPECT_FALSE(client.check({"a", "none"}));
  EXPECT_EQ(client.compare_set("c", "", "x"), "x");
  EXPECT_EQ(client.compare_set("c", "x", "y"), "y");
  EXPECT_EQ(client.num_keys(), 3);
  EXPECT_TRUE(client.delete_key("a"));
  EXPECT_FALSE(client.delete_key("a"));
  const std::string big(5 << 20, 'z');
  client.set("big", big);
  EXPECT_EQ(client.get("big", In(10s)), big);
}

TEST_F(StoreServerTest, AWaitIsAnsweredOnceAllItsKeysAreThere) {
  Start();
  const UniqueFd waiter = RawConnection();
  const std::string two_keys("\x06\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/x\x02\0\0\0\0\0\0\0/y", 29);
  const std::string ping("\x0dping", 5);
  SendText(waiter, Greeting() + two_keys + ping);
  // Requests are served in order: the answer to the second says that the wait has been noted.
  EXPECT_EQ(Receive(waiter, 4), "ping");
  StoreClient other = Client();
  other.set("x", "1");
  EXPECT_EQ(other.add("n", 1), 1);
  char byte = 0;
  EXPECT_EQ(::recv(waiter.get(), &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(other.add("y", 1), 1);
  EXPECT_EQ(Receive(waiter, 1), std::string(1, '\0'));
}

TEST_F(StoreServerTest, TheNativeClientWaitsForKeysOfAnother) {
  Start();
  std::thread setter([this] {
    StoreClient other = Client();
    other.set("x", "1");
    other.add("y", 1);
  });
  StoreClient client = Client();
  client.wait({"x", "y"}, In(10s));
  EXPECT_EQ(client.get("x", In(10s)), "1");
  setter.join();
}

TEST_F(StoreServerTest, AWaitThatTimesOutLeavesTheClientUsable) {
  Start();
  StoreClient client = Client();
  try {
    client.wait({"never"}, In(50ms));
    FAIL();
  } catch (const StoreTimeout& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'never'"));
  }
  EXPECT_EQ(client.add("n", 1), 1);
  EXPECT_THROW(client.get("never", In(20ms)), StoreTimeout);
  EXPECT_EQ(client.add("n", 1), 2);
}

TEST_F(StoreServerTest, ManyClientsCountTogether) {
  Start();
  constexpr int kClients = 8;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([this] {
      StoreClient client = Client();
      for (int k = 0; k < kEach; ++k) {
        client.add("count", 1);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(Client().add("count", 0), kClients * kEach);
}

TEST_F(StoreServerTest, ResetForgetsKeysAndDisconnectsEarlierClients) {
  Start();
  StoreClient stale = Client();
  stale.set("MASTER", "old");
  StoreClient blocked = Client();  // connected before the reset, or its greeting would be cut
  std::thread waiter([&blocked] { EXPECT_THROW(blocked.wait({"never"}, In(10s)), StoreError); });
  const UniqueFd half = RawConnection();
  SendText(half, Greeting() + "\x01\x05");
  OnLoop([this] { server_->Reset(); });
  waiter.join();
  EXPECT_THROW(stale.get("MASTER", In(10s)), StoreError);
  EXPECT_TRUE(IsEnded(half));
  StoreClient fresh = Client();
  EXPECT_EQ(fresh.num_keys(), 0);
  EXPECT_FALSE(fresh.check({"MASTER"}));
}

TEST_F(StoreServerTest, HostileClientsAreDisconnectedAndTheOthersServed) {
  StoreServer::Limits limits;
  limits.request.max_value_bytes = 1 << 20;
  Start(limits);
  StoreClient good = Client();
  const std::string huge("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  const std::string key("\x02\0\0\0\0\0\0\0/k", 10);
  for (const std::string& attack :
       {std::string("garbage\n"), std::string("\x00\x00\x00\x00\x00", 5), Greeting() + "\x63",
        Greeting() + "\x03" + huge, Greeting() + "\x01" + key + huge, Greeting() + "\x06" + huge,
        Greeting() + Greeting()}) {
    const UniqueFd fd = RawConnection();
    SendText(fd, attack);
    EXPECT_TRUE(IsEnded(fd));
    EXPECT_EQ(good.add("alive", 0), 0);
  }
  // Adding to what is no number ends the culprit's connection only.
  StoreClient culprit = Client();
  culprit.set("text", "abc");
  EXPECT_THROW(culprit.add("text", 1), StoreError);
  EXPECT_EQ(good.get("text", In(10s)), "abc");
}

TEST_F(StoreServerTest, RandomBytesDoNotHurt) {
  Start();
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    const UniqueFd fd = RawConnection();
    std::string bytes = Greeting();
    const size_t size = random() % 200;
    for (size_t i = 0; i < size; ++i) {
      bytes.push_back(static_cast<char>(random() % 3 == 0 ? random() % 18 : random() % 2));
    }
    SendText(fd, bytes);
  }
  EXPECT_EQ(Client().add("n", 1), 1);
}

TEST_F(StoreServerTest, SilentClientsAreDroppedAfterTheHandshakeTime) {
  StoreServer::Limits limits;
  limits.handshake_timeout = 50ms;
  Start(limits);
  StoreClient good = Client();
  const UniqueFd silent = RawConnection();
  EXPECT_TRUE(IsEnded(silent));
  EXPECT_EQ(good.add("n", 1), 1);
}

TEST_F(StoreServerTest, AFullTableRefusesTheWriterOnly) {
  StoreServer::Limits limits;
  limits.max_table_bytes = 4 << 20;
  Start(limits);
  StoreClient good = Client();
  good.set("small", "1");
  StoreClient greedy = Client();
  greedy.set("big", std::string(5 << 20, 'x'));
  EXPECT_THROW(greedy.get("big", In(10s)), StoreError);
  EXPECT_EQ(good.get("small", In(10s)), "1");
}

// Were its requests answered while it reads nothing, the client would exceed the limit and be
// dropped.
TEST_F(StoreServerTest, AClientThatDoesNotReadCannotFillTheMemory) {
  StoreServer::Limits limits;
  limits.max_pending_reply_bytes = 32 << 20;
  Start(limits);
  StoreClient good = Client();
  good.set("big", std::string(8 << 20, 'x'));
  const UniqueFd greedy = RawConnection();
  std::string request = Greeting();
  for (int i = 0; i < 1000; ++i) {  // 8 GB of answers, were they all made.
    request += std::string("\x03\x04\0\0\0\0\0\0\0/big", 13);
  }
  SendText(greedy, request);
  EXPECT_EQ(good.add("n", 1), 1);
  EXPECT_EQ(good.add("n", 1), 2);
  EXPECT_EQ(ConnectionCount(), 2u);
}

TEST_F(StoreServerTest, OtherProtocolsAreHandedOverUntouched) {
  std::promise<int> handed;
  Start({}, [&](UniqueFd fd) { handed.set_value(fd.release()); });
  const UniqueFd client = RawConnection();
  SendText(client, "PRI * HTTP/2.0\r\n");
  auto future = handed.get_future();
  ASSERT_EQ(future.wait_for(10s), std::future_status::ready);
  const UniqueFd server_side(future.get());
  char buffer[16];
  EXPECT_EQ(::recv(server_side.get(), buffer, sizeof(buffer), 0), 16);
  EXPECT_EQ(std::string(buffer, 16), "PRI * HTTP/2.0\r\n");
  EXPECT_EQ(ConnectionCount(), 0u);
}

TEST_F(StoreServerTest, WithoutAStoreItsClientsAreDisconnectedUnreadAndOthersHandedOver) {
  std::promise<int> handed;
  StoreServer::Limits limits;
  limits.only_hands_over = true;
  Start(limits, [&](UniqueFd fd) { handed.set_value(fd.release()); });
  for (const std::string& first : {std::string("G"), std::string("\0abcd", 5)}) {
    const UniqueFd stranger = RawConnection();
    SendText(stranger, first);
    char byte = 0;
    EXPECT_LE(::recv(stranger.get(), &byte, 1, 0), 0);
  }
  const UniqueFd agent = RawConnection();
  SendText(agent, "PRI * HTTP/2.0\r\n");
  auto future = handed.get_future();
  ASSERT_EQ(future.wait_for(10s), std::future_status::ready);
  ::close(future.get());
  { const UniqueFd silent = RawConnection(); }
  while (ConnectionCount() > 0) {
  }
}

/// Connections that have not sent anything when the store is emptied: one that the server has
/// accepted and one that is still in the kernel's queue.
class StoreServerResetTest : public StoreServerTest {
 protected:
  void ConnectAndReset() {
    Start({}, [this](UniqueFd fd) { handed_.push_back(std::move(fd)); });
    accepted_ = RawConnection();
    while (ConnectionCount() == 0) {
    }
    OnLoop([this] {
      queued_ = RawConnection();  // The loop is busy here, and accepts nobody.
      server_->Reset();
    });
  }
  size_t HandedCount() {
    size_t count = 0;
    OnLoop([&] { count = handed_.size(); });
    return count;
  }

  std::vector<UniqueFd> handed_;
  UniqueFd accepted_;
  UniqueFd queued_;
};

TEST_F(StoreServerResetTest, AgentsThatHaveNotSpokenYetAreKept) {
  ConnectAndReset();
  size_t expected = 0;
  for (UniqueFd* agent : {&accepted_, &queued_}) {
    SendText(*agent, "PRI * HTTP/2.0\r\n");
    pollfd ended{.fd = agent->get(), .events = POLLIN | POLLRDHUP, .revents = 0};
    for (++expected; HandedCount() < expected;) {
      ASSERT_EQ(::poll(&ended, 1, 1), 0) << "disconnected";
    }
  }
  EXPECT_EQ(ConnectionCount(), 0u);
}

TEST_F(StoreServerResetTest, ClientsOfTheEarlierWorldAreNotLetIntoTheNext) {
  ConnectAndReset();
  for (UniqueFd* client : {&accepted_, &queued_}) {
    SendText(*client, Greeting() + "\x0dping");
    EXPECT_EQ(Receive(*client, 4), "");
    EXPECT_TRUE(IsEnded(*client));
  }
  EXPECT_EQ(HandedCount(), 0u);
  EXPECT_EQ(Client().num_keys(), 0);
}

TEST(StoreServerListenTest, RefusesNamesAndTakenPorts) {
  EventLoop loop;
  StoreServer server(loop);
  EXPECT_EQ(server.Listen("localhost", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(server.Listen("127.0.0.1", 70'000).status().code(), absl::StatusCode::kInvalidArgument);
  const auto port = server.Listen("127.0.0.1", 0);
  ASSERT_TRUE(port.ok());
  StoreServer second(loop);
  const auto status = second.Listen("127.0.0.1", *port).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(*port)));
  EXPECT_TRUE(StoreServer(loop).Listen("::1", 0).ok() || ::access("/proc/net/if_inet6", R_OK) != 0);
}

TEST(StoreServerListenTest, TakesOverABoundSocket) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  socklen_t size = sizeof(address);
  ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  EventLoop loop;
  StoreServer server(loop);
  const auto port = server.ListenOn(std::move(fd));
  ASSERT_TRUE(port.ok());
  EXPECT_EQ(*port, ntohs(address.sin_port));
}

#ifdef FSDPRUN_PYTHON  // only where PyTorch is
/// How a child with a process group of its own ended; -1, and the group is killed, if it has not
/// within `patience`.
int AwaitChild(pid_t pid, std::chrono::milliseconds patience) {
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  pollfd ended{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
  const bool has_ended = ::poll(&ended, 1, static_cast<int>(patience.count())) == 1;
  if (!has_ended) {
    ::kill(-pid, SIGKILL);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return has_ended ? status : -1;
}

TEST_F(StoreServerTest, ServesTorchsOwnClientsAndAGlooWorldOfFour) {
  Start();
  std::string port = std::to_string(port_);
  std::vector<std::string> arguments = {FSDPRUN_PYTHON, FSDPRUN_STORE_SCRIPT, port};
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawn(&pid, FSDPRUN_PYTHON, nullptr, &attributes, argv.data(), environ), 0);
  ::posix_spawnattr_destroy(&attributes);
  EXPECT_EQ(AwaitChild(pid, 200s), 0);
}
#endif

}  // namespace
}  // namespace fsdprun
