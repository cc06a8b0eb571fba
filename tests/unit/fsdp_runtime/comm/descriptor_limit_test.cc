// Each case changes the limits of its process, so it needs one of its own.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <latch>
#include <sstream>

#include "tests/unit/fsdp_runtime/comm/linked.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

rlim_t open_descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<rlim_t>(std::distance(begin(open), end(open)));
}

TEST(DescriptorLimitTest, LinksRaiseTheSoftLimit) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = open_descriptors() + 8;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(testing::linked(6).size(), 6U);
}

// The deadline of the ranks is an hour: whoever waits for it does not end within the test's time.
TEST(DescriptorLimitTest, WhoHasNoDescriptorsLeftSaysSo) {
  const rlim_t most = open_descriptors() + 32;
  const rlimit limit{most, most};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  testing::MemoryExchange exchange;
  std::string error;
  std::vector<int> taken;  // all descriptors that are left
  std::latch are_taken(1);
  std::thread rank([&] {
    try {
      PeerLinks links(exchange, 0, 2, "127.0.0.1",
                      std::chrono::steady_clock::now() + std::chrono::hours(1));
    } catch (const LinkError& thrown) {
      are_taken.wait();
      for (const int fd : taken) {
        ::close(fd);  // a sanitizer that looks at an object needs some
      }
      error = thrown.what();
    }
  });
  std::istringstream address(
      exchange.get("links/0", std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  std::string host;
  uint16_t port = 0;
  address >> host >> port;
  const int peer = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(peer, 0);
  for (int fd = ::dup(peer); fd >= 0; fd = ::dup(peer)) {
    taken.push_back(fd);
  }
  are_taken.count_down();
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(peer, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  rank.join();
  EXPECT_THAT(error, AllOf(HasSubstr("Too many open files"), HasSubstr(std::to_string(most)),
                           HasSubstr("ulimit -Hn")));
}

}  // namespace
}  // namespace fsdp
