#include <ATen/ATen.h>
#include <fcntl.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "fsdp_runtime/src/comm/sigpipe_block.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ProcessGroupOptions options_of(const std::string& backend, int64_t rank, int port) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.rank = rank;
  options.world_size = 2;
  options.master_port = port;
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  return options;
}

// Joins the group, says so, and waits to be killed. Never returns into the test.
[[noreturn]] void be_the_victim(const std::string& backend, int port_pipe, int ready_pipe) {
  try {
    int port = 0;
    if (::read(port_pipe, &port, sizeof(port)) == sizeof(port)) {
      const auto group = init_process_group(options_of(backend, 1, port));
      (void)!::write(ready_pipe, "x", 1);
      ::pause();
    }
  } catch (const std::exception& error) {
    (void)!::write(STDERR_FILENO, error.what(), std::strlen(error.what()));
  }
  ::_exit(1);
}

// Each case is a process of its own: it forks before any thread has been started.
class KilledPeerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KilledPeerTest, SurvivorsHearOfItLongBeforeTheTimeout) {
  int ports[2], ready[2];
  ASSERT_EQ(::pipe2(ports, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t victim = ::fork();
  if (victim == 0) {
    ::close(ports[1]);
    ::close(ready[0]);
    be_the_victim(GetParam(), ports[0], ready[1]);
  }
  ::close(ports[0]);
  ::close(ready[1]);
  const auto store = testing::serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const auto group = init_process_group(options_of(GetParam(), 0, port));
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const WorkPtr work = group->all_reduce(at::ones({1000}), ReduceOp::kSum);
  ::kill(victim, SIGKILL);
  try {
    work->wait();
    ADD_FAILURE() << "the peer is dead, yet the operation ended well";
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
  }
  // What is issued later meets a connection that is known to have ended.
  EXPECT_THROW(group->all_reduce(at::ones({1000}), ReduceOp::kSum)->wait(), PeerError);
  EXPECT_THROW(group->barrier(), c10::Error);
  int status = 0;
  ::waitpid(victim, &status, 0);
  ::close(ports[1]);
  ::close(ready[0]);
}

TEST(SigpipeBlockTest, WritesFailAndTheProcessLivesOn) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ::close(ends[0]);
  {
    const SigpipeBlock no_sigpipe;
    EXPECT_EQ(::write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
    std::thread([&] {
      EXPECT_EQ(::write(ends[1], "x", 1), -1);
      EXPECT_EQ(errno, EPIPE);
    }).join();
  }
  EXPECT_EXIT(
      {
        ::signal(SIGPIPE, SIG_DFL);
        (void)!::write(ends[1], "x", 1);
        ::_exit(0);
      },
      ::testing::KilledBySignal(SIGPIPE), "")
      << "afterwards everything is as before";
  ::close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Backends, KilledPeerTest, ::testing::Values("shm", "gloo"));

}  // namespace
}  // namespace fsdp
