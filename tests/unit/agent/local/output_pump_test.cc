#include "agent/local/output_pump.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>

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

  // Appends to the followed file and tells the pump.
  void Append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
    size_ += text.size();
    pump_.Grew(0, Stream::kStdout, size_);
  }

  std::string path_;
  uint64_t size_ = 0;
  bool has_room_ = true;
  std::string shown_;
  OutputPump pump_{
      {[this](Stream, absl::string_view lines) { shown_.append(lines.data(), lines.size()); },
       [this] { return has_room_; }}};
};

TEST_F(OutputPumpTest, OutputWithoutAFileWaitsForRoomAndIsBounded) {
  pump_.Follow(0, Stream::kStdout, path_);
  has_room_ = false;
  Append("in the file\n");
  pump_.Data(0, Stream::kStdout, "after it\n");
  EXPECT_EQ(shown_, "");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(pump_.Pump());
  EXPECT_EQ(shown_, "in the file\nafter it\n");

  shown_.clear();
  has_room_ = false;
  const std::string mebibyte((1u << 20) - 1, 'x');
  for (size_t i = 0; i < OutputPump::kMaxBacklogBytes / (1u << 20) + 10; ++i) {
    pump_.Data(0, Stream::kStdout, mebibyte + "\n");
  }
  has_room_ = true;
  pump_.Data(0, Stream::kStdout, "end\n");
  pump_.Drain();
  EXPECT_LT(shown_.size(), OutputPump::kMaxBacklogBytes + 1000);
  EXPECT_NE(shown_.find("[fsdprun: 10485764 bytes of output are lost"), std::string::npos);
  pump_.Data(0, Stream::kStdout, "and on\n");
  EXPECT_EQ(shown_.substr(shown_.size() - 7), "and on\n");
}

TEST_F(OutputPumpTest, PassesWholeLinesOnly) {
  pump_.Follow(0, Stream::kStdout, path_);
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
  pump_.Follow(0, Stream::kStdout, path_);
  Append("\r 10%\r 20%");
  EXPECT_EQ(shown_, "\r 10%\r");
}

TEST_F(OutputPumpTest, WaitsForRoomAndLosesNothing) {
  pump_.Follow(0, Stream::kStdout, path_);
  has_room_ = false;
  Append(std::string(200000, 'x') + "\n");
  EXPECT_EQ(shown_, "");
  has_room_ = true;
  pump_.Pump();
  EXPECT_EQ(shown_.size(), 200001u);
}

TEST_F(OutputPumpTest, DrainIgnoresTheLackOfRoom) {
  pump_.Follow(0, Stream::kStdout, path_);
  has_room_ = false;
  Append("text\n");
  pump_.Drain();
  EXPECT_EQ(shown_, "text\n");
}

// An agent that exits does not wait for a reader, nor may it load a long log into memory.
TEST_F(OutputPumpTest, DrainTakesABoundedPartOfLongLogsAndReportsTheRest) {
  pump_.Follow(0, Stream::kStdout, path_);
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
  pump_.Follow(0, Stream::kStdout, path_);
  has_room_ = false;
  Append("old");
  pump_.Data(0, Stream::kStdout, " end");
  pump_.Follow(0, Stream::kStdout, path_ + ".next");
  pump_.Data(0, Stream::kStdout, "new\n");
  EXPECT_EQ(shown_, "");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(pump_.Pump());
  EXPECT_EQ(shown_, "old endnew\n");
}

TEST_F(OutputPumpTest, DrainTakesEarlierGenerationsToo) {
  has_room_ = false;
  for (int generation = 0; generation < 3; ++generation) {
    pump_.Follow(0, Stream::kStdout, path_);
    pump_.Data(0, Stream::kStdout, std::to_string(generation));
  }
  EXPECT_EQ(shown_, "");
  pump_.Drain();
  EXPECT_EQ(shown_, "012");
}

// The other stream has taken all the room there is for waiting.
TEST_F(OutputPumpTest, DroppedOutputIsReportedOnItsStreamAndLaterOutputPasses) {
  has_room_ = false;
  pump_.Data(0, Stream::kStdout, std::string(OutputPump::kMaxBacklogBytes, 'x'));
  pump_.Data(1, Stream::kStdout, "lost\n");
  EXPECT_FALSE(pump_.Pump());
  has_room_ = true;
  EXPECT_TRUE(pump_.Pump());
  EXPECT_NE(shown_.find("[fsdprun: 5 bytes of output are lost"), std::string::npos);
  pump_.Data(1, Stream::kStdout, "and on\n");
  EXPECT_EQ(shown_.substr(shown_.size() - 7), "and on\n");
}

TEST_F(OutputPumpTest, FileThatVanishedIsSkippedAndDirectDataGoesOn) {
  pump_.Follow(0, Stream::kStdout, path_ + ".missing");
  pump_.Grew(0, Stream::kStdout, 100);
  pump_.Data(0, Stream::kStdout, "direct\n");
  EXPECT_EQ(shown_, "direct\n");
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
