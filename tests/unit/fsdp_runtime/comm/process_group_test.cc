#include <ATen/ATen.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_backend;
using testing::serve_store;

/// A port of this machine that nobody else is given while the object lives. It is bound and not
/// listened on, so that connections to it are refused; the store's server, which like this one
/// allows addresses to be reused, can still take it.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    ::setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t length = sizeof address;
    auto* any = reinterpret_cast<sockaddr*>(&address);
    const bool is_bound =
        ::bind(socket_, any, length) == 0 && ::getsockname(socket_, any, &length) == 0;
    EXPECT_TRUE(is_bound) << std::strerror(errno);
    number_ = ntohs(address.sin_port);
  }
  ~ReservedPort() { ::close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  int number() const { return number_; }

 private:
  int socket_;
  int number_ = 0;
};

std::string error_of(const ProcessGroupOptions& options) {
  try {
    init_process_group(options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(ProcessGroupTest, WorldOfOneNeedsNoStore) {
  const auto group = init_process_group({});
  EXPECT_EQ(group->name(), "single");
  EXPECT_EQ(group->size(), 1);
  group->barrier();
}

TEST(ProcessGroupTest, AutoIsSharedMemoryOnOneHost) {
  for (const std::string& error :
       run_backend("auto", 3, [](Collectives& group) { EXPECT_EQ(group.name(), "shm"); })) {
    EXPECT_EQ(error, "");
  }
}

TEST(ProcessGroupTest, RankZeroServesTheStore) {
  const ReservedPort port;
  const auto errors = testing::run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.master_port = port.number();
        options.host_store = rank == 0;
        options.timeout = seconds(30);
        return init_process_group(options);
      },
      [](Collectives& group) {
        at::Tensor x = at::ones({4});
        group.all_reduce(x, ReduceOp::kSum)->wait();
        EXPECT_EQ(x[0].item<float>(), 2);
        group.barrier();
      });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(ProcessGroupTest, MissingRanksAreNamed) {
  const auto store = serve_store();
  ProcessGroupOptions options;
  options.world_size = 4;
  options.rank = 1;
  options.master_port = store->getPort();
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), HasSubstr("have not arrived: 0, 2, 3"));
}

TEST(ProcessGroupTest, NobodyServesTheStore) {
  const ReservedPort port;
  ProcessGroupOptions options;
  options.world_size = 2;
  options.rank = 1;
  options.master_port = port.number();
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("cannot connect"), HasSubstr("127.0.0.1")));
}

TEST(ProcessGroupTest, WrongOptionsAreNamed) {
  ProcessGroupOptions options;
  options.backend = "mpi";
  EXPECT_THAT(error_of(options), HasSubstr("'mpi'"));
  options.backend = "auto";
  options.world_size = 2;
  EXPECT_THAT(error_of(options), HasSubstr("master_port"));
  options.master_port = 29500;
  options.rank = 2;
  EXPECT_THAT(error_of(options), HasSubstr("rank 2"));
  options.rank = 1;
  options.timeout = milliseconds(-1);
  EXPECT_THAT(error_of(options), HasSubstr("timeout is -1 ms"));
}

TEST(ProcessGroupTest, NcclWithoutAGpuSaysSo) {
  if (::access("/dev/nvidiactl", F_OK) == 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  ProcessGroupOptions options;
  options.backend = "nccl";
  EXPECT_THAT(error_of(options), HasSubstr("nccl"));
  EXPECT_THAT(error_of(options), HasSubstr("gloo or shm"));
}

TEST(ProcessGroupTest, GroupsFormedOneAfterAnotherDoNotMeet) {
  const auto store = serve_store();
  const auto errors = testing::run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.master_port = store->getPort();
        options.timeout = seconds(60);
        init_process_group(options)->barrier();
        return init_process_group(options);
      },
      [](Collectives& group) {
        at::Tensor x = at::ones({4});
        group.all_reduce(x, ReduceOp::kSum)->wait();
        EXPECT_EQ(x[0].item<float>(), 2);
      });
  EXPECT_EQ(errors, (std::vector<std::string>{"", ""}));
}

TEST(ProcessGroupTest, WithoutADriverThereAreNoCudaDevices) {
  if (::access("/dev/nvidiactl", F_OK) == 0) {
    GTEST_SKIP() << "this machine has a GPU";
  }
  EXPECT_EQ(cuda_device_count(), 0);
}

}  // namespace
}  // namespace fsdp
