#include "fsdp_runtime/shm/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/unit/fsdp_runtime/shm/processes.h"
#include "tests/unit/fsdp_runtime/shm/thread_ranks.h"
#include "tests/unit/fsdp_runtime/shm/two_ranks.h"

namespace fsdp::shm {
namespace {

using testing::run_ranks;
using testing::shows;
using testing::TwoRanks;
using testing::write_part;

uint64_t value_of(int rank, int version) {
  return static_cast<uint64_t>(version) * 100 + static_cast<uint64_t>(rank);
}

// What a step does, `steps` times: the optimizer writes, and forward reads. Some ranks write over
// what they have gathered.
void train(Group& group, Window& window, int steps) {
  WindowLane& lane = *group.windows();
  for (int step = 0; step < steps; ++step) {
    lane.wait_for_readers(window);
    write_part(window, value_of(group.rank(), step));
    lane.wait(lane.issue(window, "unit a"));
    for (int rank = 0; rank < group.size(); ++rank) {
      if (!shows(window, rank, value_of(rank, step))) {
        throw std::runtime_error("step " + std::to_string(step) + ": wrong part of rank " +
                                 std::to_string(rank));
      }
    }
    if ((step + group.rank()) % 3 == 0) {
      std::memset(window.whole(), 7, static_cast<size_t>(group.size()) * window.bytes());
    }
    lane.release(window);
  }
}

TEST(WindowTest, EveryRankSeesTheLastVersionOfAllPartsEndToEnd) {
  for (const int size : {1, 2, 4}) {
    for (const std::string& error : run_ranks(size, [](Group& group) {
           const auto window = group.make_window(0, 3 * page_bytes(), "unit a");
           ASSERT_NE(window, nullptr);
           EXPECT_EQ(reinterpret_cast<uintptr_t>(window->whole()) % page_bytes(), 0u);
           EXPECT_EQ(reinterpret_cast<uintptr_t>(window->own()) % page_bytes(), 0u);
           train(group, *window, 20);
         })) {
      EXPECT_EQ(error, "");
    }
  }
}

TEST(WindowTest, WritesOverTheWholeReachNoShardAndAreForgottenWithTheUse) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  for (const int rank : {0, 1}) {
    write_part(*window[rank], value_of(rank, 1));
    ranks.lane(rank).issue(*window[rank], "unit a");
  }
  std::memset(window[0]->whole(), 7, 2 * window[0]->bytes());
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(shows(*window[1], rank, value_of(rank, 1)));
  }
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(window[0]->own()), value_of(0, 1));
  for (const int rank : {0, 1}) {
    ranks.lane(rank).release(*window[rank]);
  }
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(shows(*window[0], rank, value_of(rank, 1)));
  }
}

TEST(WindowTest, MemoryOutlivesTheGroup) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  ranks.groups = {};
  write_part(*window[0], 5);
  EXPECT_TRUE(shows(*window[1], 0, 5));
}

TEST(WindowTest, APartStaysAsItIsWhileAPeerMayReadItAlsoWhenItsWindowIsGone) {
  TwoRanks ranks;
  auto window = ranks.make_window("unit a");
  char* const part = window[0]->own();
  write_part(*window[0], 5);
  ranks.lane(0).issue(*window[0], "unit a");
  window[0].reset();
  EXPECT_NE(ranks.groups[0]->allocate(2 * page_bytes()).get(), part);
  ranks.lane(1).wait(ranks.lane(1).issue(*window[1], "unit a"));
  EXPECT_TRUE(shows(*window[1], 0, 5));
  ranks.lane(1).release(*window[1]);
  EXPECT_EQ(ranks.groups[0]->allocate(2 * page_bytes()).get(), part) << "nobody reads it any more";
}

TEST(WindowTest, IfOneRankHasNoMemoryForItNoneHasAWindow) {
  for (const std::string& error : run_ranks(3, [](Group& group) {
         std::vector<std::shared_ptr<void>> all;
         for (size_t bytes = size_t{1} << 44; group.rank() == 1 && bytes > 0; bytes /= 2) {
           while (std::shared_ptr<void> piece = group.allocate(bytes)) {
             all.push_back(std::move(piece));
           }
         }
         EXPECT_EQ(group.make_window(0, page_bytes(), "unit a"), nullptr);
         all.clear();
         const auto window = group.make_window(0, page_bytes(), "unit b");
         ASSERT_NE(window, nullptr);
         train(group, *window, 2);
       })) {
    EXPECT_EQ(error, "");
  }
}

TEST(WindowTest, AForkedChildThatReleasesAndDestroysItTakesNoPart) {
  TwoRanks ranks;
  const auto window = ranks.make_window("unit a");
  write_part(*window[0], 5);
  ranks.lane(0).issue(*window[0], "unit a");
  const pid_t child = ::fork();
  if (child == 0) {
    ranks.lane(0).release(*window[0]);
    window[0]->~Window();
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(window[0]->is_held());
  ranks.lane(0).release(*window[0]);
}

class WindowProcessesTest : public testing::ProcessesTest {};

TEST_F(WindowProcessesTest, IfOneRankCannotReadItsPageMapNoneHasAWindow) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(spawn([&, rank] {
      testing::FolderExchange exchange(folder_);
      const auto world = attach(exchange, rank, 3, std::chrono::seconds(20));
      if (rank == 1) {
        world->pages = PageMap(Fd());
      }
      Group group(world, rank, std::chrono::seconds(20));
      return group.make_window(0, page_bytes(), "unit a") == nullptr ? 0 : 1;
    }));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(exit_status(child), 0);
  }
}

TEST_F(WindowProcessesTest, ProcessesTrainThroughAWindow) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(spawn([&, rank] {
      testing::FolderExchange exchange(folder_);
      Group group(attach(exchange, rank, 3, std::chrono::seconds(20)), rank,
                  std::chrono::seconds(20));
      const auto window = group.make_window(0, 64 * page_bytes(), "unit a");
      train(group, *window, 50);
      return 0;
    }));
  }
  for (const pid_t child : children) {
    EXPECT_EQ(exit_status(child), 0);
  }
}

}  // namespace
}  // namespace fsdp::shm
