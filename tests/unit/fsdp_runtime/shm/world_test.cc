#include "fsdp_runtime/shm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/error.h"
#include "fsdp_runtime/shm/group.h"
#include "tests/unit/fsdp_runtime/shm/processes.h"

namespace fsdp::shm {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::FolderExchange;
using ::testing::HasSubstr;

using WorldTest = testing::ProcessesTest;

// Whether this process maps a file of /dev/shm, whose name would outlive a killed job.
bool maps_named_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("/dev/shm/") != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Why rank 1 of two cannot attach.
std::string refusal_of(FolderExchange& exchange) {
  try {
    attach(exchange, 1, 2, seconds(20));
  } catch (const Unavailable& error) {
    return error.what();
  }
  return "";
}

TEST_F(WorldTest, ProcessesReduceThroughArenaAndRing) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(spawn([&, rank] {
      FolderExchange exchange(folder_);
      Group group(attach(exchange, rank, 3, seconds(20)), rank, seconds(20));
      constexpr size_t kNumel = 300000;
      const auto slot = group.allocate(3 * kNumel * sizeof(float));
      auto* grads = static_cast<float*>(slot.get());
      std::vector<float> staged(3 * kNumel), from_arena(kNumel), from_ring(kNumel);
      for (size_t i = 0; i < 3 * kNumel; ++i) {
        grads[i] = staged[i] = static_cast<float>(rank + 1) * 0.1f + static_cast<float>(i % 7);
      }
      group.reduce_scatter(1, from_arena.data(), grads, kNumel, DType::kF32, ReduceOp::kAvg);
      group.reduce_scatter(1, from_ring.data(), staged.data(), kNumel, DType::kF32, ReduceOp::kAvg);
      const size_t at = static_cast<size_t>(rank) * kNumel + 5;
      const float base = static_cast<float>(at % 7);
      const float expected = (((1 * 0.1f + base) + (2 * 0.1f + base)) + (3 * 0.1f + base)) / 3;
      if (maps_named_memory()) {
        return 2;
      }
      return from_arena == from_ring && from_arena[5] == expected ? 0 : 1;
    }));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(exit_status(child), 0);
  }
}

// The group would wait ten minutes, longer than this test may take.
TEST_F(WorldTest, KilledPeerIsNamedLongBeforeTheTimeout) {
  const pid_t victim = spawn([&] {
    FolderExchange exchange(folder_);
    Group group(attach(exchange, 1, 2, seconds(20)), 1, minutes(10));
    group.barrier(0);
    ::raise(SIGSTOP);
    return 0;
  });
  FolderExchange exchange(folder_);
  Group group(attach(exchange, 0, 2, seconds(20)), 0, minutes(10));
  group.barrier(0);
  std::thread killer([&] {
    int status = 0;
    ::waitpid(victim, &status, WUNTRACED);
    ::kill(victim, SIGKILL);
  });
  float x = 1;
  try {
    group.all_reduce(1, &x, 1, DType::kF32, ReduceOp::kSum);
    ADD_FAILURE() << "the peer is dead, yet it returned";
  } catch (const PeerLost& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 died before it could start it"));
  }
  killer.join();
  exit_status(victim);
}

TEST_F(WorldTest, MissingRankIsNamed) {
  FolderExchange exchange(folder_);
  try {
    attach(exchange, 0, 2, milliseconds(50));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has not arrived"));
  }
}

TEST_F(WorldTest, StaleRecordOfADeadRunIsRefused) {
  const pid_t former = spawn([&] { return 0; });
  exit_status(former);
  FolderExchange exchange(folder_);
  exchange.put("shm/info/0", std::to_string(former) + " 7 4096 8 1234");
  EXPECT_THAT(refusal_of(exchange), HasSubstr("watching process " + std::to_string(former)));
}

TEST_F(WorldTest, ControlBlockOfAnotherRunIsRefused) {
  // A live process whose memory has the right size but another nonce than the store says.
  Mapping arena = Mapping::create("stale-arena", 1 << 20);
  Mapping control = Mapping::create("stale-control", control_bytes(2));
  FolderExchange exchange(folder_);
  exchange.put("shm/info/0", std::to_string(::getpid()) + " " + std::to_string(arena.fd()) + " " +
                                 std::to_string(1 << 20) + " " + std::to_string(control.fd()) +
                                 " 1234");
  EXPECT_THAT(refusal_of(exchange), HasSubstr("stale"));
}

TEST_F(WorldTest, HostileRecordsAreRefused) {
  const std::string unreadable = "rank 0 published an unreadable record";
  for (const auto& [record, reason] :
       {std::pair<std::string, std::string>{"", unreadable},
        {"x", unreadable},
        {"-1 3 4096 4 1", unreadable},
        {"1 2", unreadable},
        {"99999999999999999999 1 1 1 1", unreadable},
        {"failed: no memory", "rank 0 failed: no memory"},
        {"1 0 18446744073709551615 0 0", "opening a peer's shared memory through /proc/1/fd/0"}}) {
    FolderExchange exchange(folder_);
    exchange.put("shm/info/0", record);
    EXPECT_THAT(refusal_of(exchange), HasSubstr(reason)) << record;
  }
}

TEST_F(WorldTest, OneRanksFailureReachesAllWithItsReason) {
  const pid_t healthy = spawn([&] {
    FolderExchange exchange(folder_);
    try {
      attach(exchange, 0, 2, seconds(20));
    } catch (const Error& error) {
      return std::strstr(error.what(), "no memory") != nullptr ? 0 : 1;
    }
    return 2;
  });
  FolderExchange exchange(folder_);
  exchange.put("shm/info/1", "failed: no memory");
  EXPECT_EQ(exit_status(healthy), 0);
}

TEST(HostIdentityTest, IsStableAndNamesTheKernel) {
  EXPECT_EQ(host_identity(), host_identity());
  EXPECT_GT(host_identity().size(), 36u);
}

}  // namespace
}  // namespace fsdp::shm
