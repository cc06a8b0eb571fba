#include "fsdp_runtime/shm/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace fsdp::shm {
namespace {

std::shared_ptr<Mapping> memory(size_t bytes) {
  return std::make_shared<Mapping>(Mapping::create("arena-test", bytes));
}

TEST(ArenaTest, PiecesAreAlignedAndDisjoint) {
  Arena arena(memory(1 << 20));
  char* a = static_cast<char*>(arena.allocate(1));
  char* b = static_cast<char*>(arena.allocate(100));
  char* c = static_cast<char*>(arena.allocate(70000));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % Arena::kAlignment, 0u);
  EXPECT_EQ(b - a, 64);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(c) % 4096, 0u);
  EXPECT_GE(c, b + 128);
}

TEST(ArenaTest, ReturnsNullWhenFullAndServesAgainAfterFree) {
  Arena arena(memory(1 << 20));
  void* all = arena.allocate(1 << 20);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(arena.allocate(1), nullptr);
  arena.free(all);
  EXPECT_EQ(arena.allocated_bytes(), 0u);
  EXPECT_EQ(arena.allocate(1 << 20), all);
}

TEST(ArenaTest, HugeRequestsDoNotWrapAround) {
  Arena arena(memory(1 << 20));
  EXPECT_EQ(arena.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(arena.allocate(SIZE_MAX - 100), nullptr);
}

TEST(ArenaTest, FreedMemoryGoesBackAndReadsAsZero) {
  Arena arena(memory(1 << 20));
  char* piece = static_cast<char*>(arena.allocate(1 << 18));
  std::memset(piece, 7, 1 << 18);
  arena.free(piece);
  char* again = static_cast<char*>(arena.allocate(1 << 18));
  ASSERT_EQ(again, piece);
  EXPECT_EQ(again[0], 0);
  EXPECT_EQ(again[(1 << 18) - 1], 0);
}

TEST(ArenaTest, SmallPiecesCanHavePagesOfTheirOwn) {
  Arena arena(memory(1 << 20));
  ASSERT_NE(arena.allocate(1), nullptr);
  const auto page = reinterpret_cast<uintptr_t>(arena.allocate_pages(4096));
  EXPECT_EQ(page % 4096, 0u);
}

TEST(ArenaTest, APieceStaysUntilNobodyUsesIt) {
  Arena arena(memory(1 << 20));
  bool is_unused = false;
  char* piece = static_cast<char*>(arena.allocate(1 << 20));
  piece[0] = 7;
  arena.free_once(piece, [&is_unused] { return is_unused; });
  EXPECT_EQ(arena.allocate(1), nullptr);
  EXPECT_EQ(piece[0], 7);
  is_unused = true;
  EXPECT_EQ(arena.allocate(1 << 20), piece);
  arena.free_once(piece, [] { return true; });
  EXPECT_EQ(arena.allocated_bytes(), 0u);
}

TEST(ArenaTest, AForkedChildThatFreesWhatItInheritedLeavesTheMemoryAlone) {
  Arena arena(memory(1 << 20));
  char* piece = static_cast<char*>(arena.allocate(Arena::kPageAlignedFrom));
  std::memset(piece, 5, Arena::kPageAlignedFrom);
  const pid_t child = ::fork();
  if (child == 0) {
    arena.free(piece);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(
      std::all_of(piece, piece + Arena::kPageAlignedFrom, [](char byte) { return byte == 5; }));
  arena.free(piece);
}

TEST(ArenaTest, RandomUseNeverOverlapsAndCoalescesBack) {
  constexpr size_t kBytes = 8 << 20;
  Arena arena(memory(kBytes));
  std::mt19937 random(7);
  struct Piece {
    char* data;
    size_t bytes;
    char mark;
  };
  std::vector<Piece> live;
  for (int step = 0; step < 4000; ++step) {
    if (live.empty() || random() % 2 == 0) {
      const size_t bytes = 1 + random() % (random() % 4 == 0 ? 300000 : 3000);
      char* data = static_cast<char*>(arena.allocate(bytes));
      if (data != nullptr) {
        live.push_back({data, bytes, static_cast<char>(step)});
        std::memset(data, live.back().mark, bytes);
      }
    } else {
      const size_t victim = random() % live.size();
      const Piece piece = live[victim];
      ASSERT_TRUE(std::all_of(piece.data, piece.data + piece.bytes,
                              [&piece](char byte) { return byte == piece.mark; }))
          << "another piece wrote into the one of step " << static_cast<int>(piece.mark);
      arena.free(piece.data);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
    }
  }
  for (const Piece& piece : live) {
    arena.free(piece.data);
  }
  EXPECT_EQ(arena.allocated_bytes(), 0u);
  EXPECT_NE(arena.allocate(kBytes), nullptr) << "free ranges were not joined";
}

}  // namespace
}  // namespace fsdp::shm
