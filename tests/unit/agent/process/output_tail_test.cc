#include "agent/process/output_tail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace fsdprun::keeper {
namespace {

using Lines = std::vector<std::string>;

TEST(OutputTailTest, HoldsTheEndOfWhatWasAppendedInAnyPieces) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const size_t capacity = random() % 20;
    OutputTail tail(capacity);
    std::string all;
    for (int i = 0; i < 30; ++i) {
      const std::string piece(random() % 25, static_cast<char>('a' + i % 26));
      all += piece;
      tail.Append(piece);
      ASSERT_EQ(tail.Text(), all.substr(all.size() - std::min(all.size(), capacity)));
      ASSERT_EQ(tail.is_cut(), all.size() > capacity);
    }
  }
}

TEST(LastLinesTest, TakesTheLastLinesWithoutNewlines) {
  EXPECT_TRUE(LastLines("", 3, false).empty());
  EXPECT_TRUE(LastLines("a", 0, false).empty());
  EXPECT_EQ(LastLines("\n", 3, false), Lines{""});
  EXPECT_EQ(LastLines("a\nb\n\nc", 2, false), (Lines{"", "c"}));
  EXPECT_EQ(LastLines("a\nb\n\nc", 9, false), (Lines{"a", "b", "", "c"}));
  EXPECT_EQ(LastLines("a\nb\n\nc\n", 1, false), Lines{"c"});
}

TEST(LastLinesTest, MarksALineWhoseBeginningIsMissing) {
  EXPECT_EQ(LastLines("xxx\nlast\n", 9, true), (Lines{"...xxx", "last"}));
  EXPECT_EQ(LastLines("xxx\nlast\n", 1, true), Lines{"last"});
  EXPECT_EQ(LastLines("\nlast\n", 9, true), (Lines{"...", "last"}));
}

}  // namespace
}  // namespace fsdprun::keeper
