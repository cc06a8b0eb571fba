// A rank that leaves without having been killed: by exit(), by an exception, in the middle of
// something. The others hear at once who it was, and it ends itself without a wait for them.

#include <ATen/ATen.h>
#include <fcntl.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

enum class Leaving { kExit, kExitWithAStaticGroup, kException };

constexpr int kStatus = 3;

/// How rank 1 leaves, with a gather in flight that rank 0 never issues, or with none.
struct Way {
  std::string name;
  Leaving leaving;
  bool has_work;
  std::string told;  // to rank 0
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

std::shared_ptr<Collectives> join(const std::string& backend, int64_t rank, int port) {
  ProcessGroupOptions options;
  options.backend = backend;
  options.rank = rank;
  options.world_size = 2;
  options.master_port = port;
  options.timeout = std::chrono::minutes(10);  // longer than a test may take
  return init_process_group(options);
}

void issue_and_fail(const std::string& backend, int port, bool has_work) {
  const std::shared_ptr<Collectives> group = join(backend, 1, port);
  if (has_work) {
    group->all_gather_into(at::empty({2000}), at::ones({1000}), Lane::kGather);
  }
  throw std::runtime_error("the data loader failed");
}

/// The process of rank 1. Its status is kStatus unless it has crashed or waited.
[[noreturn]] void leave(const std::string& backend, int port, const Way& way) {
  if (way.leaving == Leaving::kException) {
    try {
      issue_and_fail(backend, port, way.has_work);
    } catch (const std::runtime_error&) {
      ::_exit(kStatus);
    }
    ::_exit(1);
  }
  static std::shared_ptr<Collectives> kept;
  std::shared_ptr<Collectives> group = join(backend, 1, port);
  if (way.has_work) {
    group->all_gather_into(at::empty({2000}), at::ones({1000}), Lane::kGather);
  }
  if (way.leaving == Leaving::kExitWithAStaticGroup) {
    kept = std::move(group);
  }
  std::exit(kStatus);
}

// Each case is a process of its own: it forks before any thread has been started.
class LeavingPeerTest : public ::testing::TestWithParam<std::tuple<std::string, Way>> {};

TEST_P(LeavingPeerTest, IsNamedAtOnceAndWaitsForNobody) {
  const auto& [backend, way] = GetParam();
  int ports[2];
  ASSERT_EQ(::pipe2(ports, O_CLOEXEC), 0);
  const pid_t leaver = ::fork();
  if (leaver == 0) {
    int port = 0;
    (void)!::read(ports[0], &port, sizeof(port));
    leave(backend, port, way);
  }
  const auto store = testing::serve_store();
  const int port = store->getPort();
  ASSERT_EQ(::write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  try {  // The peer may be gone before this rank has left the barrier of its own joining.
    const auto group = join(backend, 0, port);
    group->all_reduce(at::ones({1000}), ReduceOp::kSum)->wait();
    ADD_FAILURE() << "the peer has left, yet the operation ended well";
  } catch (const PeerError& error) {
    EXPECT_EQ(error.rank, 1);
    EXPECT_THAT(error.what(), HasSubstr(way.told));
  }
  int status = 0;
  ::waitpid(leaver, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kStatus) << status;
  ::close(ports[0]);
  ::close(ports[1]);
}

std::vector<Way> ways() {
  const std::string left = "rank 1 left the group";
  const std::string destroyed = "rank 1 destroyed its process group";
  return {{"exit", Leaving::kExit, false, "rank 1 died"},
          {"exit_with_work", Leaving::kExit, true, "rank 1 died"},
          {"exit_with_a_static_group", Leaving::kExitWithAStaticGroup, false, left},
          {"exit_with_a_static_group_and_work", Leaving::kExitWithAStaticGroup, true, destroyed},
          {"exception", Leaving::kException, false, left},
          {"exception_with_work", Leaving::kException, true, destroyed}};
}

INSTANTIATE_TEST_SUITE_P(Ways, LeavingPeerTest,
                         ::testing::Combine(::testing::Values("shm", "gloo"),
                                            ::testing::ValuesIn(ways())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace fsdp
