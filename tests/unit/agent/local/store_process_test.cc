#include "agent/local/store_process.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "agent/process/process_scan.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

/// In a keeper's place: a process that does nothing.
class StoreProcessTest : public testing::Test {
 protected:
  StoreProcessTest() : keeper_(::fork()) {
    if (keeper_ == 0) {
      ::pause();
      ::_exit(0);
    }
    keeper_pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, keeper_, 0)));
  }
  ~StoreProcessTest() override {
    if (keeper_ > 0) {
      EndKeeper();
    }
  }
  void EndKeeper() {
    ::kill(keeper_, SIGKILL);
    ::waitpid(keeper_, nullptr, 0);
    keeper_ = -1;
  }
  static UniqueFd PidfdOf(const StoreProcess::Id& id) {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, id.pid, 0)));
  }
  static bool Ends(const UniqueFd& pidfd) {
    pollfd end{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 60'000) == 1;
  }
  static UniqueFd Connect(int port) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0
               ? std::move(fd)
               : UniqueFd();
  }
  /// Adds 1 to a key, as TCPStore's clients do; the sum, or -1.
  static int64_t Add(const UniqueFd& fd, bool is_first) {
    std::string request = is_first ? std::string("\0\xce\xf7\x85\x3c", 5) : "";
    request += std::string("\4\1\0\0\0\0\0\0\0k\1\0\0\0\0\0\0\0", 18);
    if (::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
        static_cast<ssize_t>(request.size())) {
      return -1;
    }
    int64_t sum = -1;
    return ::recv(fd.get(), &sum, sizeof(sum), MSG_WAITALL) == sizeof(sum) ? sum : -1;
  }

  pid_t keeper_;
  UniqueFd keeper_pidfd_;
  EventLoop loop_;
};

TEST_F(StoreProcessTest, OutlivesWhoStartedItAndEndsWithTheKeeper) {
  StoreProcess::Id id;
  UniqueFd client;
  {
    StoreProcess store(loop_, FSDPRUN_AGENT_BINARY);
    const absl::StatusOr<int> port = store.Renew("127.0.0.1", keeper_pidfd_.get(), 8);
    ASSERT_TRUE(port.ok()) << port.status();
    client = Connect(*port);  // Nobody needs to wait until it runs.
    ASSERT_TRUE(client.valid());
    EXPECT_EQ(Add(client, true), 1);
    id = store.id();
  }
  EXPECT_EQ(Add(client, false), 2);
  const UniqueFd pidfd = PidfdOf(id);
  EndKeeper();
  EXPECT_TRUE(Ends(pidfd));
  ::waitpid(id.pid, nullptr, 0);
}

TEST_F(StoreProcessTest, AnotherGenerationHasAnotherStoreAndNobodyOfTheLastReachesIt) {
  StoreProcess first(loop_, FSDPRUN_AGENT_BINARY);
  const absl::StatusOr<int> port = first.Renew("127.0.0.1", keeper_pidfd_.get(), 8);
  ASSERT_TRUE(port.ok()) << port.status();
  const UniqueFd client = Connect(*port);
  EXPECT_EQ(Add(client, true), 1);
  const StoreProcess::Id id = first.id();
  const UniqueFd pidfd = PidfdOf(id);
  StoreProcess next(loop_, FSDPRUN_AGENT_BINARY);  // As another agent has it.
  next.Adopt(id);
  const absl::StatusOr<int> other = next.Renew("127.0.0.1", keeper_pidfd_.get(), 8);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_TRUE(Ends(pidfd));
  EXPECT_EQ(Add(client, false), -1);
  const UniqueFd new_client = Connect(*other);
  EXPECT_EQ(Add(new_client, true), 1);
}

TEST_F(StoreProcessTest, WithoutDescriptorsTheLastOneEndsAndThereIsNoOther) {
  StoreProcess store(loop_, FSDPRUN_AGENT_BINARY);
  ASSERT_TRUE(store.Renew("127.0.0.1", keeper_pidfd_.get(), 8).ok());
  const UniqueFd last = PidfdOf(store.id());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // A sanitizer's check of a virtual call needs a descriptor, unless it has just seen such a call.
  ASSERT_NE(ErrorText(EMFILE), "");
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = store.Renew("127.0.0.1", keeper_pidfd_.get(), 8).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Ends(last));
  // Nor is one started that nobody could reach.
  EXPECT_FALSE(store.Renew("127.0.0.1", -1, 8).ok());
  EXPECT_EQ(store.id().pid, 0);
}

TEST_F(StoreProcessTest, AnAddressOrAProgramThatIsNotThere) {
  StoreProcess store(loop_, "/nonexistent/fsdp-agent");
  EXPECT_FALSE(store.Renew("not an address", keeper_pidfd_.get(), 8).ok());
  const absl::StatusOr<int> port = store.Renew("127.0.0.1", keeper_pidfd_.get(), 8);
  EXPECT_EQ(port.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(store.id().pid, 0);
}

}  // namespace
}  // namespace fsdprun
