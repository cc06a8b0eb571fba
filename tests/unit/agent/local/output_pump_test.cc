#include "agent/local/output_pump.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using keeper::Stream;

class OutputPumpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/output_pump_XXXXXX";
    ::close(::mkstemp(path_.data()));
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  // Appends to the followed file, tells the pump and waits until it has read what it wants to.
  void Append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
    size_ += text.size();
    pump_.Grew(0, Stream::kStdout, size_);
    Settle();
  }
  void Settle() {
    while (pump_.is_reading()) {
      pump_.Await(MonoNow() + std::chrono::seconds(60));
    }
  }
  bool PumpAll() {
    pump_.Pump();
    Settle();
    return pump_.Pump();
  }

  std::string path_;
  uint64_t size_ = 0;
  bool has_room_ = true;
  std::string shown_;
  std::string errors_;
  EventLoop loop_;
  FileThread files_{loop_};
  OutputPump::Sink MakeSink() {
    return {[this](Stream stream, const std::string& target, absl::string_view lines) {
              (stream == Stream::kStdout ? shown_ : errors_) += absl::StrCat(target, lines);
            },
            [this](Stream stream) { return stream == Stream::kStdout ? has_room_ : true; },
            [this](Stream, const std::string&, const MissingOutput& missing) {
              shown_ += Describe(missing);
            }};
  }
  OutputPump pump_{loop_, files_, MakeSink()};
};

TEST_F(OutputPumpTest, GoesOnBehindWhatWasShownAndTellsHowMuchThatIs) {
  std::vector<uint64_t> told;
  pump_.TellShown([&told](int local_rank, Stream stream, uint64_t offset) {
    EXPECT_EQ(local_rank, 0);
    EXPECT_EQ(stream, Stream::kStdout);
    told.push_back(offset);
  });
  std::ofstream(path_) << "one\ntwo\nthree\n";
  size_ = 14;
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  pump_.Skip(0, Stream::kStdout, 8);
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_, "");
  Append("four");
  EXPECT_EQ(shown_, "three\n");
  EXPECT_EQ(told, std::vector<uint64_t>({14}));  // What has no end yet is not shown.
  Append("\n");
  EXPECT_EQ(shown_, "three\nfour\n");
  EXPECT_EQ(told, std::vector<uint64_t>({14, 19}));
  pump_.Follow(0, Stream::kStdout, {.path = path_});  // Of the next life.
  pump_.Grew(0, Stream::kStdout, 4);
  Settle();
  EXPECT_EQ(told, std::vector<uint64_t>({14, 19, 4}));
}

TEST_F(OutputPumpTest, WhatAnotherAgentWouldBeginWithStaysInTheSpool) {
  uint64_t told = 0;
  pump_.TellShown([&told](int, Stream, uint64_t offset) { told = offset; });
  pump_.Follow(0, Stream::kStdout, {.path = path_, .is_spool = true});
  const std::string line = std::string((1 << 20) - 11, 'x') + "\n";
  Append(line + "0123456789");  // A line that crosses the border of a part.
  EXPECT_EQ(told, line.size());
  Append("abcdef");
  EXPECT_EQ(told, line.size());
  const auto is_whole = [this](size_t from) {
    std::ifstream file(path_, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return text.find('\0', from) == std::string::npos;
  };
  EXPECT_TRUE(is_whole(0));
  pump_.GiveBack(0, Stream::kStdout, told);
  Append("g\n");
  EXPECT_TRUE(is_whole(0));
  pump_.GiveBack(0, Stream::kStdout, told);
  Append("h");
  EXPECT_FALSE(is_whole(0));
  EXPECT_TRUE(is_whole(1 << 20));
  EXPECT_EQ(shown_, line + "0123456789abcdefg\n");
}

TEST_F(OutputPumpTest, OutputWithoutAFileWaitsForRoomAndIsBounded) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  has_room_ = false;
  Append("in the file\n");
  pump_.Data(0, Stream::kStdout, "after it\n");
  EXPECT_EQ(shown_, "");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_, "in the file\nafter it\n");

  shown_.clear();
  has_room_ = false;
  const std::string mebibyte((1u << 20) - 1, 'x');
  for (size_t i = 0; i < OutputPump::kMaxStreamBytes / (1u << 20) + 10; ++i) {
    pump_.Data(0, Stream::kStdout, mebibyte + "\n");
  }
  has_room_ = true;
  pump_.Data(0, Stream::kStdout, "end\n");
  pump_.Drain();
  EXPECT_LT(shown_.size(), OutputPump::kMaxStreamBytes + 1000);
  EXPECT_NE(shown_.find("[fsdprun: 10485764 bytes of output are lost"), std::string::npos);
  pump_.Data(0, Stream::kStdout, "and on\n");
  EXPECT_EQ(shown_.substr(shown_.size() - 7), "and on\n");
}

TEST_F(OutputPumpTest, PassesWholeLinesOnly) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  Append("one\ntw");
  EXPECT_EQ(shown_, "one\n");
  Append("o\nthr");
  EXPECT_EQ(shown_, "one\ntwo\n");
  pump_.Drain();
  EXPECT_EQ(shown_, "one\ntwo\nthr");
  pump_.Drain();
  EXPECT_EQ(shown_, "one\ntwo\nthr");
}

TEST_F(OutputPumpTest, CarriageReturnEndsALine) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  Append("\r 10%\r 20%");
  EXPECT_EQ(shown_, "\r 10%\r");
}

TEST_F(OutputPumpTest, WaitsForRoomAndLosesNothing) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  has_room_ = false;
  Append(std::string(200000, 'x') + "\n");
  EXPECT_EQ(shown_, "");
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_.size(), 200001u);
}

TEST_F(OutputPumpTest, DrainIgnoresTheLackOfRoom) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  has_room_ = false;
  Append("text\n");
  pump_.Drain();
  EXPECT_EQ(shown_, "text\n");
}

// An agent that exits does not wait for a reader, nor may it load a long log into memory.
TEST_F(OutputPumpTest, DrainTakesABoundedPartOfLongLogsAndReportsTheRest) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  has_room_ = false;
  std::string line(1023, 'x');
  line += "\n";
  std::ofstream file(path_, std::ios::binary);
  for (size_t i = 0; i < OutputPump::kMaxBacklogBytes / line.size() + 2; ++i) {
    file << line;
  }
  file.close();
  size_ = OutputPump::kMaxBacklogBytes + 2 * line.size();
  pump_.Grew(0, Stream::kStdout, size_);
  pump_.Data(0, Stream::kStdout, "after the file\n");
  pump_.Drain();
  const std::string note = "[fsdprun: 2048 bytes of output are not shown here";
  EXPECT_EQ(shown_.find(note), OutputPump::kMaxBacklogBytes);
  EXPECT_NE(shown_.find("at the end of " + path_ + "]\nafter the file\n"), std::string::npos);
  shown_.clear();
  pump_.Drain();
  EXPECT_EQ(shown_, "");
}

TEST_F(OutputPumpTest, NextGenerationWaitsForTheOneBeforeAtTheReadersPace) {
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  has_room_ = false;
  Append("old");
  pump_.Data(0, Stream::kStdout, " end");
  pump_.Follow(0, Stream::kStdout, {.path = path_ + ".next"});
  pump_.Data(0, Stream::kStdout, "new\n");
  EXPECT_EQ(shown_, "");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_, "old endnew\n");
}

TEST_F(OutputPumpTest, DrainTakesEarlierGenerationsToo) {
  has_room_ = false;
  for (int generation = 0; generation < 3; ++generation) {
    pump_.Follow(0, Stream::kStdout, {.path = path_});
    pump_.Data(0, Stream::kStdout, std::to_string(generation));
  }
  EXPECT_EQ(shown_, "");
  pump_.Drain();
  EXPECT_EQ(shown_, "012");
}

// Other streams have taken all the room there is for waiting.
TEST_F(OutputPumpTest, DroppedOutputIsReportedOnItsStreamAndLaterOutputPasses) {
  has_room_ = false;
  for (int rank = 2; rank < 6; ++rank) {
    pump_.Data(rank, Stream::kStdout, std::string(OutputPump::kMaxBacklogBytes / 4, 'x'));
  }
  pump_.Data(1, Stream::kStdout, "lost\n");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_NE(shown_.find("[fsdprun: 5 bytes of output are lost"), std::string::npos);
  pump_.Data(1, Stream::kStdout, "and on\n");
  EXPECT_EQ(shown_.substr(shown_.size() - 7), "and on\n");
}

TEST_F(OutputPumpTest, OneStreamTakesNoMoreThanItsShareInAllGenerations) {
  has_room_ = false;
  pump_.Data(0, Stream::kStdout, std::string(OutputPump::kMaxStreamBytes - 1, 'x'));
  pump_.Follow(0, Stream::kStdout, {.path = path_});
  pump_.Data(0, Stream::kStdout, "lost\n");
  pump_.Data(0, Stream::kStderr, "not lost\n");
  pump_.Data(1, Stream::kStdout, "nor this\n");
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_NE(shown_.find("[fsdprun: 5 bytes of output are lost"), std::string::npos);
  EXPECT_EQ(errors_, "not lost\n");
  EXPECT_NE(shown_.find("nor this\n"), std::string::npos);
  pump_.Data(0, Stream::kStdout, std::string(OutputPump::kMaxStreamBytes - 1, 'y') + "\n");
  EXPECT_EQ(shown_.substr(shown_.size() - 2), "y\n") << "what has been shown takes no room";
}

TEST_F(OutputPumpTest, FileThatVanishedIsSkippedAndDirectDataGoesOn) {
  pump_.Follow(0, Stream::kStdout, {.path = path_ + ".missing"});
  pump_.Grew(0, Stream::kStdout, 100);
  pump_.Data(0, Stream::kStdout, "direct\n");
  Settle();
  EXPECT_EQ(shown_, "direct\n");
}

/// The log of rank 0 is a FIFO that nobody writes: opening it for reading does not return.
class HangingLogTest : public OutputPumpTest {
 protected:
  void Hang() {
    ::unlink(path_.c_str());
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    pump_.Follow(0, Stream::kStdout, {.path = path_});
    pump_.Grew(0, Stream::kStdout, 100);
    ASSERT_TRUE(pump_.is_reading());
  }
  /// Ends the hang, so that no thread is left at the end of the test.
  void TearDown() override {
    const UniqueFd writer(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    OutputPumpTest::TearDown();
  }
};

TEST_F(HangingLogTest, TheEndIsNotDelayedAndWhatIsMissingIsCounted) {
  OutputPump impatient(loop_, files_, MakeSink(),
                       /*read_limit=*/std::chrono::milliseconds(1));
  ::unlink(path_.c_str());
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  for (const int rank : {0, 1}) {
    impatient.Follow(rank, Stream::kStdout, {.path = path_});
    impatient.Grew(rank, Stream::kStdout, 100);
    impatient.Data(rank, Stream::kStdout, "after the file\n");
  }
  impatient.Drain();
  const std::string note =
      "[fsdprun: 100 bytes of output are not shown here because the file system of the log does "
      "not answer; they are at the end of " +
      path_ + "]\nafter the file\n";
  EXPECT_EQ(shown_, note + note);
}

std::vector<std::string>& Warnings() {
  static std::vector<std::string> warnings;
  return warnings;
}

TEST_F(HangingLogTest, EveryStallIsWarnedOfOnce) {
  Warnings().clear();
  SetLogSink([](LogLevel, absl::string_view line) { Warnings().emplace_back(line); });
  LoopWaiter waiter(loop_);
  OutputPump impatient(loop_, files_, MakeSink(),
                       /*read_limit=*/std::chrono::milliseconds(200));
  const auto run = [&](Duration duration) {
    const MonoTime end = MonoNow() + duration;
    ASSERT_TRUE(waiter.PollUntil([end] { return MonoNow() >= end; }));
  };
  for (size_t stall = 1; stall <= 2; ++stall) {
    const std::string path = path_ + std::to_string(stall);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    impatient.Follow(0, Stream::kStdout, {.path = path});
    impatient.Grew(0, Stream::kStdout, 100);
    EXPECT_TRUE(waiter.PollUntil([&] { return Warnings().size() == stall; }));
    run(std::chrono::milliseconds(500));
    ASSERT_EQ(Warnings().size(), stall);
    EXPECT_NE(Warnings().back().find("reading " + path + " has taken longer"), std::string::npos);
    const UniqueFd writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // Ends the stall.
    EXPECT_TRUE(waiter.PollUntil([&] { return !impatient.is_reading(); }));
    ::unlink(path.c_str());
    // A read that is answered in time.
    impatient.Follow(1, Stream::kStdout, {.path = path_});
    impatient.Grew(1, Stream::kStdout, 100);
    EXPECT_TRUE(waiter.PollUntil([&] { return !impatient.is_reading(); }));
    run(std::chrono::milliseconds(300));
    EXPECT_EQ(Warnings().size(), stall);
  }
  SetLogSink([](LogLevel, absl::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
}

TEST_F(HangingLogTest, OutputWithoutAFileIsShownMeanwhile) {
  Hang();
  pump_.Data(1, Stream::kStdout, "other\n");
  EXPECT_EQ(shown_, "other\n");
  EXPECT_FALSE(pump_.Pump());
  {
    const UniqueFd writer(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    Settle();  // pread() fails on a FIFO: its content is skipped.
  }
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_, "other\n");
}

TEST_F(OutputPumpTest, AStreamWithoutRoomDoesNotHoldUpTheOther) {
  std::ofstream(path_, std::ios::binary) << "in a file\n";
  has_room_ = false;
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    pump_.Follow(0, stream, {.path = path_});
    pump_.Follow(1, stream, {});
    pump_.Grew(0, stream, 10);
    pump_.Data(1, stream, "in memory\n");
  }
  Settle();
  EXPECT_FALSE(pump_.Pump());
  EXPECT_EQ(shown_, "");
  EXPECT_EQ(errors_, "in memory\nin a file\n");
  has_room_ = true;
  EXPECT_TRUE(PumpAll());
  EXPECT_EQ(shown_, "in memory\nin a file\n");
}

TEST_F(OutputPumpTest, ARouteBelongsToOneStartOfAWorker) {
  has_room_ = false;
  pump_.Follow(0, Stream::kStdout, {.format = LineFormat::Prefixed("old:"), .target = "a "});
  pump_.Data(0, Stream::kStdout, "1\n2");
  pump_.Follow(0, Stream::kStdout, {.format = LineFormat::Prefixed("new:"), .target = "b "});
  pump_.Data(0, Stream::kStdout, "3");
  has_room_ = true;
  pump_.Pump();
  pump_.Drain();
  EXPECT_EQ(shown_, "a old:1\na old:2\nb new:3\n");
}

TEST_F(OutputPumpTest, WhatIsInAFileThatIsNotFollowedIsNotShown) {
  pump_.Follow(0, Stream::kStdout, {});
  pump_.Grew(0, Stream::kStdout, 100);
  EXPECT_FALSE(pump_.is_reading());
  pump_.Data(0, Stream::kStdout, "not in the file\n");
  pump_.Follow(1, Stream::kStdout, {.is_wanted = false});
  pump_.Data(1, Stream::kStdout, "not wanted\n");
  EXPECT_TRUE(pump_.Pump());
  EXPECT_EQ(shown_, "not in the file\n");
}

TEST_F(OutputPumpTest, ASpoolGivesBackWhatHasBeenShownAndALogKeepsIt) {
  for (const bool is_spool : {true, false}) {
    std::ofstream(path_, std::ios::trunc);
    size_ = 0;
    shown_.clear();
    pump_.Follow(0, Stream::kStdout, {.path = path_, .is_spool = is_spool});
    const std::string part((8u << 20) - 1, 'x');
    Append(part + "\n");
    Append(part + "\n");
    EXPECT_EQ(shown_.size(), 16u << 20);
    struct stat info {};
    ASSERT_EQ(::stat(path_.c_str(), &info), 0);
    EXPECT_EQ(info.st_blocks * 512 <= 3 << 20, is_spool) << info.st_blocks;
  }
}

TEST_F(OutputPumpTest, WorkersAndStreamsDoNotShareAPartialLine) {
  pump_.Data(0, Stream::kStdout, "a");
  pump_.Data(1, Stream::kStdout, "b");
  pump_.Data(0, Stream::kStderr, "c");
  pump_.Data(0, Stream::kStdout, "\n");
  EXPECT_EQ(shown_, "a\n");
}

}  // namespace
}  // namespace fsdprun
