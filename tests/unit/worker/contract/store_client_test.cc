#include "worker/contract/store_client.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

// Against servers that misbehave; agent/store's tests run it against a real one.

namespace fsdprun::worker {
namespace {

using namespace std::chrono_literals;

/// A socket that listens on a free port of the loopback address; nobody accepts.
struct Listener {
  Listener() {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    socklen_t size = sizeof(address);
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd); }
  int fd = -1;
  int port = 0;
};

TEST(StoreClientTest, NamesAreRefusedAtOnce) {
  try {
    StoreClient client("example.invalid", 1234, 10s);
    FAIL();
  } catch (const StoreError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'example.invalid'"));
    EXPECT_THAT(error.what(), testing::HasSubstr("numeric address"));
  }
  EXPECT_THROW(StoreClient("127.0.0.1", 0, 10s), StoreError);
}

TEST(StoreClientTest, NoServerEndsAtTheDeadline) {
  const Listener bound;  // Bound but not listening: connections are refused.
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(StoreClient("127.0.0.1", bound.port, 100ms), StoreTimeout);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
}

TEST(StoreClientTest, SilentServerEndsAtTheDeadline) {
  const Listener silent;
  ASSERT_EQ(::listen(silent.fd, 8), 0);
  EXPECT_THROW(StoreClient("127.0.0.1", silent.port, 100ms), StoreTimeout);
}

}  // namespace
}  // namespace fsdprun::worker
