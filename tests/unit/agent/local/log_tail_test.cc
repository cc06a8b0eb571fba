#include "agent/local/log_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BeginOfLastLinesTest, CountsLinesFromTheEnd) {
  const std::string text = "a\nbb\nccc\n";
  EXPECT_EQ(BeginOfLastLines(text, 0), text.size());
  EXPECT_EQ(BeginOfLastLines(text, 1), 5u);
  EXPECT_EQ(BeginOfLastLines(text, 2), 2u);
  EXPECT_EQ(BeginOfLastLines(text, 3), 0u);
  EXPECT_EQ(BeginOfLastLines(text, 100), 0u);
}

TEST(BeginOfLastLinesTest, AnUnterminatedLineIsOne) {
  EXPECT_EQ(BeginOfLastLines("a\nbb", 1), 2u);
  EXPECT_EQ(BeginOfLastLines("a\n\n", 1), 2u);
  EXPECT_EQ(BeginOfLastLines("\n", 1), 0u);
  EXPECT_EQ(BeginOfLastLines("", 1), 0u);
}

class LogTailTest : public testing::Test {
 protected:
  LogTailTest() : folder_(testing::TempDir() + "log_tail_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~LogTailTest() override { RemoveFolder(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name, const std::string& text,
             std::ios::openmode mode = std::ios::app) {
    std::ofstream(Path(name), mode) << text;
  }
  TailedLog Log(const std::string& name, uint64_t generation = 1) {
    return {.rank = 0, .is_stderr = false, .path = Path(name), .generation = generation};
  }
  void Begin(std::vector<TailedLog> logs, int tail_lines, bool follows) {
    LogTail::Hooks hooks;
    hooks.on_lines = [this](const v1::LogLines& lines) {
      lines_.insert(lines_.end(), lines.lines().begin(), lines.lines().end());
      gaps_ += lines.has_gap() ? 1 : 0;
      generations_.push_back(lines.generation());
      waiter_.Notice();
    };
    hooks.on_end = [this] {
      has_ended_ = true;
      waiter_.Notice();
    };
    hooks.has_room = [this] { return has_room_; };
    tail_ = std::make_unique<LogTail>(loop_, std::move(logs), tail_lines, follows, hooks);
  }
  bool UntilEnd() {
    return waiter_.RunUntil([this] { return has_ended_; });
  }
  bool UntilLines(size_t count) {
    return waiter_.RunUntil([this, count] { return lines_.size() >= count; });
  }

  const std::string folder_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  bool has_room_ = true;
  std::vector<std::string> lines_;
  std::vector<uint64_t> generations_;
  int gaps_ = 0;
  bool has_ended_ = false;
  std::unique_ptr<LogTail> tail_;
};

TEST_F(LogTailTest, TellsTheLastLinesAndEnds) {
  Write("a", "1\n2\n3\nrest");
  Begin({Log("a"), Log("none")}, 2, /*follows=*/false);
  ASSERT_TRUE(UntilEnd());
  EXPECT_THAT(lines_, ElementsAre("3", "rest"));
}

TEST_F(LogTailTest, AFileThatIsNotThereIsEmpty) {
  Begin({Log("none")}, 5, /*follows=*/false);
  ASSERT_TRUE(UntilEnd());
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(LogTailTest, FollowsWholeLinesOfAFileThatComesLater) {
  Begin({Log("late")}, 5, /*follows=*/true);
  ASSERT_TRUE(waiter_.PollUntil([&, polls = 0]() mutable { return ++polls > 20; }));
  Write("late", "one\ntw");
  ASSERT_TRUE(UntilLines(1));
  Write("late", "o\n");
  ASSERT_TRUE(UntilLines(2));
  EXPECT_THAT(lines_, ElementsAre("one", "two"));
  EXPECT_FALSE(has_ended_);
}

TEST_F(LogTailTest, ALineWithoutEndComesInParts) {
  Write("long", std::string(3 * LogTail::kPieceBytes, 'x') + "\n");
  Begin({Log("long")}, 1, /*follows=*/false);
  ASSERT_TRUE(UntilEnd());
  std::string all;
  for (const std::string& line : lines_) {
    EXPECT_LE(line.size(), LogTail::kPieceBytes);
    all += line;
  }
  EXPECT_EQ(all, std::string(3 * LogTail::kPieceBytes, 'x'));
}

TEST_F(LogTailTest, LooksBackForALimitedNumberOfBytes) {
  std::string text;
  while (text.size() < LogTail::kTailBytes + 1000) {
    text += "a line of the file\n";
  }
  Write("big", text);
  Begin({Log("big")}, 1 << 30, /*follows=*/false);
  ASSERT_TRUE(UntilEnd());
  EXPECT_LE(lines_.size() * 19, LogTail::kTailBytes + 19);
  EXPECT_EQ(lines_.back(), "a line of the file");
}

TEST_F(LogTailTest, AFileThatWasEmptiedHasAGap) {
  Write("a", "1\n2\n3\n");
  Begin({Log("a")}, 9, /*follows=*/true);
  ASSERT_TRUE(UntilLines(3));
  Write("a", "4\n", std::ios::trunc);
  ASSERT_TRUE(UntilLines(4));
  EXPECT_EQ(lines_.back(), "4");
  EXPECT_EQ(gaps_, 1);
}

TEST_F(LogTailTest, OtherFilesFollowWhenTheseAreRead) {
  Write("a", "1\n");
  Begin({Log("a")}, 9, /*follows=*/true);
  ASSERT_TRUE(UntilLines(1));
  Write("a", "2\nlast");
  Write("b", "3\n");
  tail_->Replace({Log("b", 2)});
  ASSERT_TRUE(UntilLines(4));
  EXPECT_THAT(lines_, ElementsAre("1", "2", "last", "3"));
  EXPECT_THAT(generations_, ElementsAre(1u, 1u, 1u, 2u));
  Write("a", "nobody reads it\n");
  Write("b", "4\n");
  ASSERT_TRUE(UntilLines(5));
  EXPECT_EQ(lines_.back(), "4");
}

TEST_F(LogTailTest, TellsWhatIsLeftAtTheEnd) {
  Write("a", "1\n");
  Begin({Log("a"), Log("none")}, 9, /*follows=*/true);
  ASSERT_TRUE(UntilLines(1));
  Write("a", "2\nlast");
  tail_->Drain(MonoNow() + std::chrono::seconds(60));
  EXPECT_THAT(lines_, ElementsAre("1", "2", "last"));
}

TEST_F(LogTailTest, AtTheEndWithoutRoomNothingIsWaitedFor) {
  Begin({Log("a")}, 9, /*follows=*/true);
  ASSERT_TRUE(waiter_.PollUntil([&, polls = 0]() mutable { return ++polls > 20; }));
  Write("a", "1\n");
  has_room_ = false;
  const MonoTime deadline = MonoNow() + std::chrono::seconds(60);
  tail_->Drain(deadline);
  EXPECT_LT(MonoNow(), deadline);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(LogTailTest, WithoutRoomNothingIsRead) {
  Write("a", "1\n");
  has_room_ = false;
  Begin({Log("a")}, 9, /*follows=*/false);
  ASSERT_TRUE(waiter_.PollUntil([&, polls = 0]() mutable { return ++polls > 50; }));
  EXPECT_THAT(lines_, IsEmpty());
  has_room_ = true;
  ASSERT_TRUE(UntilEnd());
  EXPECT_THAT(lines_, ElementsAre("1"));
}

}  // namespace
}  // namespace fsdprun
