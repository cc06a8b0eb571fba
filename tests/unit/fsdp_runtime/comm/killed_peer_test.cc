#include <ATen/ATen.h>
#include <fcntl.h>
#include <fsdp/device_mesh.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "fsdp_runtime/src/comm/sigpipe_block.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/comm/reserved_port.h"

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

struct ThreadStatus {
  std::string name;
  bool blocks_sigpipe = false;
};

/// The threads of this process by their number.
std::map<int, ThreadStatus> threads() {
  std::map<int, ThreadStatus> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(entry.path() / "status");
    ThreadStatus& thread = all[std::stoi(entry.path().filename())];
    for (std::string key; status >> key;) {
      if (key == "Name:") {
        status >> thread.name;
      } else if (key == "SigBlk:") {
        std::string mask;
        status >> mask;
        thread.blocks_sigpipe = (std::stoull(mask, nullptr, 16) >> (SIGPIPE - 1)) & 1;
      }
    }
  }
  return all;
}

// Each case is a process of its own: it forks before any thread has been started.
class KilledPeerTest : public ::testing::TestWithParam<std::string> {};

TEST_P(KilledPeerTest, SurvivorsHearOfItLongBeforeTheTimeout) {
  ::signal(SIGPIPE, SIG_DFL);
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
    EXPECT_THAT(error.what(), AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1 died")));
    EXPECT_EQ(error.rank, 1);
    EXPECT_EQ(error.operation, "all_reduce on lane 1");
  }
  // What is issued later meets a connection that is known to have ended.
  EXPECT_THROW(group->all_reduce(at::ones({1000}), ReduceOp::kSum)->wait(), PeerError);
  EXPECT_THROW(group->barrier(), c10::Error);
  int status = 0;
  ::waitpid(victim, &status, 0);
  ::close(ports[1]);
  ::close(ready[0]);
}

/// What a reduction with hybrid sharding issues: a sum in the row, and then one over the copies.
void reduce_in_row_and_over_copies(const std::shared_ptr<Collectives>& world,
                                   const std::function<void()>& on_ready) {
  const auto mesh = init_device_mesh(c10::kCPU, {2, 2}, {"dp_replicate", "dp_shard"}, world);
  at::Tensor sum = at::empty({500});
  on_ready();
  const WorkPtr in_row = mesh->group(1)->reduce_scatter_into(sum, at::ones({1000}), ReduceOp::kSum,
                                                             {Lane::kReduce, "unit a"});
  mesh->group(0)->all_reduce(sum, ReduceOp::kSum, {Lane::kReduce, "unit a", in_row})->wait();
}

// Rank 3 of 2 x 2 dies. Rank 2 is in its row, rank 1 has the same shard, and rank 0 only hears of
// it from them.
TEST_P(KilledPeerTest, AllRanksOfAMeshHearOfADeathAnywhere) {
  ::signal(SIGPIPE, SIG_DFL);
  int ports[2], ready[2];
  ASSERT_EQ(::pipe2(ports, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const auto options = [](int64_t rank, int port) {
    ProcessGroupOptions options = options_of(GetParam(), rank, port);
    options.world_size = 4;
    return options;
  };
  const pid_t victim = ::fork();
  if (victim == 0) {
    int port = 0;
    (void)!::read(ports[0], &port, sizeof(port));
    reduce_in_row_and_over_copies(init_process_group(options(3, port)), [&ready] {
      (void)!::write(ready[1], "x", 1);
      ::pause();
    });
    ::_exit(1);
  }
  const auto store = testing::serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  std::atomic<int> waiting{0};
  const auto errors = testing::run_threads(
      3, [&](int64_t rank) { return init_process_group(options(rank, port)); },
      [&](Collectives& group) {
        const std::shared_ptr<Collectives> world(&group, [](Collectives*) {});
        reduce_in_row_and_over_copies(world, [&] {
          char byte = 0;
          if (++waiting == 3) {
            (void)!::read(ready[0], &byte, 1);
            ::kill(victim, SIGKILL);
          }
        });
      });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 3 died")) << ::testing::PrintToString(errors);
  }
  int status = 0;
  ::waitpid(victim, &status, 0);
  for (const int fd : {ports[0], ports[1], ready[0], ready[1]}) {
    ::close(fd);
  }
}

// Rank 1 is killed where rank 0 waits for it to gather, or to end its use.
class KilledPeerWindowTest : public ::testing::TestWithParam<bool> {};

TEST_P(KilledPeerWindowTest, SurvivorsHearOfItLongBeforeTheTimeout) {
  const bool is_reader_killed = GetParam();
  int ports[2], ready[2];
  ASSERT_EQ(::pipe2(ports, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const auto make_window = [](Collectives& group) {
    return group.make_gather_window(group.window_alignment(), at::kByte, "unit a");
  };
  const pid_t victim = ::fork();
  if (victim == 0) {
    int port = 0;
    (void)!::read(ports[0], &port, sizeof(port));
    const auto group = init_process_group(options_of("shm", 1, port));
    const auto window = make_window(*group);
    if (is_reader_killed) {
      window->issue({Lane::kGather, "unit a"})->wait();
    }
    (void)!::write(ready[1], "x", 1);
    ::pause();
    ::_exit(1);
  }
  const auto store = testing::serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const auto group = init_process_group(options_of("shm", 0, port));
  const auto window = make_window(*group);
  const WorkPtr gather = window->issue({Lane::kGather, "unit a"});
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(victim, SIGKILL);
  try {
    gather->wait();
    EXPECT_TRUE(is_reader_killed) << "the peer is dead, yet it has gathered";
    window->release();
    window->wait_for_readers();
    ADD_FAILURE() << "the peer is dead, yet it has ended its use";
  } catch (const PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 died"));
    EXPECT_EQ(error.rank, 1);
    EXPECT_EQ(error.operation, is_reader_killed ? "wait for the readers of the shard of unit a"
                                                : "all_gather for unit a through a window");
  }
  EXPECT_THROW(group->barrier(), PeerError);
  int status = 0;
  ::waitpid(victim, &status, 0);
  for (const int fd : {ports[0], ports[1], ready[0], ready[1]}) {
    ::close(fd);
  }
}

// Whether a write meets a closed connection is chance; that none can end the process is not.
TEST_P(KilledPeerTest, NoThreadOfAGroupCanEndTheProcessBySigpipe) {
  ::signal(SIGPIPE, SIG_DFL);
  const testing::ReservedPort port;
  const std::map<int, ThreadStatus> before = threads();
  std::array<std::shared_ptr<Collectives>, 2> groups;
  const auto form = [&](int64_t rank) {
    ProcessGroupOptions options = options_of(GetParam(), rank, port.number());
    options.host_store = rank == 0;
    groups[rank] = init_process_group(options);
    // A lane sets its mask before its first operation.
    groups[rank]->all_gather_into(at::empty({2}), at::ones({1}), Lane::kGather)->wait();
    groups[rank]->all_reduce(at::ones({1}), ReduceOp::kSum, Lane::kReduce)->wait();
  };
  std::thread other(form, 1);
  form(0);
  other.join();
  std::map<std::string, int> found;
  for (const auto& [number, thread] : threads()) {
    ++found[thread.name];
    EXPECT_EQ(thread.blocks_sigpipe, before.count(number) == 0) << thread.name << " " << number;
  }
  EXPECT_EQ(found["fsdp-gather"], 2);
  EXPECT_EQ(found["fsdp-reduce"], 2);
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
INSTANTIATE_TEST_SUITE_P(Waits, KilledPeerWindowTest, ::testing::Bool());

}  // namespace
}  // namespace fsdp
