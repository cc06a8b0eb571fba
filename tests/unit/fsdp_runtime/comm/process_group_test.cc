#include <ATen/ATen.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_backend;
using testing::serve_store;

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
  // A port that was free a moment ago; the test retries would hide a real failure, so it does not.
  const int port = serve_store()->getPort();
  const auto errors = testing::run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.master_port = port;
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
  ProcessGroupOptions options;
  options.world_size = 2;
  options.rank = 1;
  options.master_port = serve_store()->getPort();
  options.timeout = milliseconds(200);
  EXPECT_THAT(error_of(options), AllOf(HasSubstr("nobody accepted"), HasSubstr("127.0.0.1")));
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

// Forks before this process has started any thread of torch's: the children use the library alone.
class KilledPeerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KilledPeerTest, SurvivorsHearOfItSoon) {
  int ports[2], ready[2];
  ASSERT_EQ(::pipe(ports), 0);
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t victim = ::fork();
  if (victim == 0) {
    int port = 0;
    if (::read(ports[0], &port, sizeof(port)) != sizeof(port)) {
      ::_exit(1);
    }
    ProcessGroupOptions options;
    options.backend = GetParam();
    options.rank = 1;
    options.world_size = 2;
    options.master_port = port;
    const auto group = init_process_group(options);
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  const auto store = serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  ProcessGroupOptions options;
  options.backend = GetParam();
  options.world_size = 2;
  options.master_port = port;
  options.timeout = seconds(60);
  const auto group = init_process_group(options);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const WorkPtr work = group->all_reduce(at::ones({1000}), ReduceOp::kSum);
  const auto begin = steady_clock::now();
  ::kill(victim, SIGKILL);
  try {
    work->wait();
    ADD_FAILURE() << "the peer is dead, yet the operation ended well";
  } catch (const c10::Error& error) {
    EXPECT_LT(steady_clock::now() - begin, seconds(1));
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
  }
  int status = 0;
  ::waitpid(victim, &status, 0);
  for (const int fd : {ports[0], ports[1], ready[0], ready[1]}) {
    ::close(fd);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KilledPeerTest, ::testing::Values("shm", "gloo"));

}  // namespace
}  // namespace fsdp
