#include "fsdp_runtime/store/store_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "fsdp_runtime/store/tcp.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::serve_store;

steady_clock::time_point in(milliseconds time) { return steady_clock::now() + time; }

TEST(StoreClientTest, SpeaksToLibTorchsServer) {
  const auto server = serve_store();
  StoreClient client("127.0.0.1", server->getPort(), seconds(10));
  client.set("a", "alpha");
  EXPECT_EQ(client.get("a", in(seconds(5))), "alpha");
  EXPECT_EQ(server->get_to_str("a"), "alpha") << "keys must look alike to c10d's clients";
  server->set("b", std::vector<uint8_t>{'b', 'e', 't', 'a'});
  EXPECT_EQ(client.get("b", in(seconds(5))), "beta");
  EXPECT_EQ(client.add("n", 5), 5);
  EXPECT_EQ(client.add("n", -2), 3);
  EXPECT_TRUE(client.check({"a", "b"}));
  EXPECT_FALSE(client.check({"a", "zzz"}));
  EXPECT_EQ(client.compare_set("c", "", "first"), "first");
  EXPECT_EQ(client.compare_set("c", "wrong", "second"), "first");
  EXPECT_EQ(client.compare_set("c", "first", "second"), "second");
  client.append("a", "bet");
  EXPECT_EQ(client.get("a", in(seconds(5))), "alphabet");
  client.multi_set({"x", "y"}, {"1", std::string(100000, 'y')});
  EXPECT_EQ(client.multi_get({"y", "x"}, in(seconds(5))),
            (std::vector<std::string>{std::string(100000, 'y'), "1"}));
  EXPECT_GE(client.num_keys(), 5);
  EXPECT_TRUE(client.delete_key("a"));
  EXPECT_FALSE(client.delete_key("a"));
  client.delete_keys({"x", "a", "y"});
  EXPECT_FALSE(client.check({"x"}));
  EXPECT_FALSE(client.check({"y"}));
  EXPECT_TRUE(client.check({"b"}));
  EXPECT_EQ(client.local_address(), "127.0.0.1");
}

TEST(StoreClientTest, GetWaitsForTheKey) {
  const auto server = serve_store();
  StoreClient reader("127.0.0.1", server->getPort(), seconds(10));
  std::thread writer([&] {
    StoreClient client("127.0.0.1", server->getPort(), seconds(10));
    client.wait({"asking"}, in(seconds(10)));
    client.set("late", "value");
  });
  reader.set("asking", "");
  EXPECT_EQ(reader.get("late", in(seconds(10))), "value");
  writer.join();
}

TEST(StoreClientTest, ExpiredWaitNamesTheKeyAndKeepsTheConnection) {
  const auto server = serve_store();
  StoreClient client("127.0.0.1", server->getPort(), seconds(10));
  const auto before = testing::served_connections(server);
  for (int attempt = 0; attempt < 3; ++attempt) {
    try {
      client.get("never", in(milliseconds(20)));
      FAIL();
    } catch (const StoreTimeout& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("never"), HasSubstr("127.0.0.1")));
    }
  }
  client.set("a", "1");
  EXPECT_EQ(client.get("a", in(seconds(5))), "1");
  EXPECT_EQ(testing::served_connections(server), before);
}

// A server that answers the greeting with `answer` and then hangs up or says no more.
class HostileServer {
 public:
  HostileServer(std::string answer, bool hangs_up) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_, 8);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), hangs_up] {
      const int fd = ::accept(listener_, nullptr, nullptr);
      char request[4096];
      (void)!::recv(fd, request, sizeof(request), 0);
      if (answer == "echo") {
        // The greeting in full, then a value of 2^60 bytes for whatever is asked.
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        (void)!::recv(fd, request, sizeof(request), 0);
        const std::string value("\0\0\0\0\0\0\0\0\x10", 9);
        (void)!::send(fd, value.data(), value.size(), MSG_NOSIGNAL);
      } else if (answer == "late value") {
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        (void)!::recv(fd, request, sizeof(request), 0);
        (void)!::send(fd, "\0", 1, MSG_NOSIGNAL);  // the key is there
        (void)!::recv(fd, request, sizeof(request), 0);
        ::poll(nullptr, 0, 100);  // longer than the wait for the key may take
        const std::string value("\1\0\0\0\0\0\0\0v", 9);
        (void)!::send(fd, value.data(), value.size(), MSG_NOSIGNAL);
      } else if (answer == "late greeting") {
        ::poll(nullptr, 0, 200);  // longer than a call may take
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        while (::recv(fd, request, sizeof(request), 0) > 0) {
        }
      } else if (answer == "half a value") {
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        (void)!::recv(fd, request, sizeof(request), 0);
        (void)!::send(fd, "\0", 1, MSG_NOSIGNAL);  // the key is there
        (void)!::recv(fd, request, sizeof(request), 0);
        const std::string half("\2\0\0\0\0\0\0\0v", 9);
        (void)!::send(fd, half.data(), half.size(), MSG_NOSIGNAL);
        while (::recv(fd, request, sizeof(request), 0) > 0) {
        }
      } else if (answer == "late reader") {
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        ::poll(nullptr, 0, 200);  // longer than a call may take
        std::vector<char> piece(1 << 20);
        while (::recv(fd, piece.data(), piece.size(), 0) > 0) {
        }
      } else if (answer == "greeting") {
        (void)!::send(fd, request + 6, 4, MSG_NOSIGNAL);
        while (::recv(fd, request, sizeof(request), 0) > 0) {
        }
      } else {
        (void)!::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      }
      if (!hangs_up) {
        (void)!::recv(fd, request, sizeof(request), 0);
      }
      ::close(fd);
    });
  }
  ~HostileServer() {
    ::shutdown(listener_, SHUT_RDWR);  // ends an accept() that nobody answered
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }

 private:
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

TEST(StoreClientTest, HostileServersEndInAnError) {
  {
    HostileServer other_protocol("HTTP/1.1 400 Bad Request\r\n\r\n", true);
    EXPECT_THROW(StoreClient("127.0.0.1", other_protocol.port(), seconds(5)), StoreError);
  }
  {
    HostileServer hangs_up("", true);
    EXPECT_THROW(StoreClient("127.0.0.1", hangs_up.port(), seconds(5)), StoreError);
  }
  {
    HostileServer silent("", false);
    EXPECT_THROW(StoreClient("127.0.0.1", silent.port(), milliseconds(100)), StoreError);
  }
  {
    HostileServer announces_too_much("echo", true);
    StoreClient client("127.0.0.1", announces_too_much.port(), seconds(5));
    try {
      client.get("key", in(seconds(5)));
      FAIL();
    } catch (const StoreError& error) {
      EXPECT_THAT(error.what(), HasSubstr("announces"));
    }
  }
}

// As one whose process is stopped: the kernel accepts connections for it.
TEST(StoreClientTest, ServerThatDoesNotAnswerIsNoAnswerOfTheServer) {
  HostileServer stops("greeting", false);
  StoreClient client("127.0.0.1", stops.port(), std::chrono::minutes(10));
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(client.get("never", in(milliseconds(20))), StoreSilence);
  }
}

// Or many large ones could not be read by who looks up now and then.
TEST(StoreClientTest, ValueThatIsThereMayTakeLongerThanTheWaitForIt) {
  HostileServer slow("late value", true);
  StoreClient client("127.0.0.1", slow.port(), seconds(10));
  EXPECT_EQ(client.get("key", in(milliseconds(20))), "v");
}

// Or who asks again and again would take it for a key that is not there yet.
TEST(StoreClientTest, ServerThatFallsSilentWithinAValueIsSilent) {
  HostileServer stops("half a value", false);
  StoreClient client("127.0.0.1", stops.port(), std::chrono::minutes(10));
  EXPECT_THROW(client.get("key", in(milliseconds(20))), StoreSilence);
}

TEST(StoreClientTest, ConnectingMayTakeLongerThanACall) {
  HostileServer late("late greeting", false);
  StoreClient client("127.0.0.1", late.port(), std::chrono::minutes(10), milliseconds(50));
  EXPECT_EQ(client.timeout(), milliseconds(50));
  EXPECT_THROW(client.check({"key"}), StoreTimeout);
}

// Its network may be slow, or many clients may send to it at once.
TEST(StoreClientTest, LargeValueHasLongerThanACallMayTake) {
  HostileServer late("late reader", false);
  StoreClient client("127.0.0.1", late.port(), std::chrono::minutes(10), milliseconds(50));
  // More than the kernel keeps for the two.
  client.set("key", std::string(size_t{32} << 20, 'x'));
}

// The kernel takes a value long before the server has read it.
TEST(StoreClientTest, AnswerToALargeValueHasLongerThanACallMayTake) {
  const auto server = serve_store();
  StoreClient client("127.0.0.1", server->getPort(), seconds(30), milliseconds(0));
  const std::string value(size_t{4} << 20, 'x');  // 16 s
  client.set_acknowledged("key", value);
  EXPECT_EQ(server->get_to_str("key"), value);
}

// The client would wait ten minutes, longer than this test may take.
TEST(StoreClientTest, ServerThatWentIsGivenUpLongBeforeTheTimeout) {
  auto server = serve_store();
  StoreClient client("127.0.0.1", server->getPort(), std::chrono::minutes(10));
  client.set("a", "1");
  server.reset();
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_THROW(client.check({"a"}), StoreError);
  }
}

TEST(StoreClientTest, RouteToTheLoopbackIsTheLoopback) {
  EXPECT_EQ(local_address_towards("127.0.0.1", 29500), "127.0.0.1");
}

TEST(StoreClientTest, UnknownHostIsNamed) {
  try {
    StoreClient client("no.such.host.invalid", 29500, milliseconds(500));
    FAIL();
  } catch (const StoreError& error) {
    EXPECT_THAT(error.what(), HasSubstr("no.such.host.invalid"));
  }
}

}  // namespace
}  // namespace fsdp
