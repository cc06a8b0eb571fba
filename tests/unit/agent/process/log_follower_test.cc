#include "agent/process/log_follower.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fsdprun {
namespace {

struct Piece {
  std::string text;
  bool starts = false;
  bool ends = false;
  bool operator==(const Piece&) const = default;
};

class LogFollowerTest : public testing::Test {
 protected:
  LogFollowerTest() : path_(testing::TempDir() + "follower_" + std::to_string(::getpid())) {}
  ~LogFollowerTest() override { std::filesystem::remove(path_); }
  uint64_t Append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
    return std::filesystem::file_size(path_);
  }
  LogFollower Make() {
    return LogFollower(path_, [this](std::string_view text, bool starts, bool ends) {
      pieces_.push_back({std::string(text), starts, ends});
    });
  }
  const std::string path_;
  std::vector<Piece> pieces_;
};

TEST_F(LogFollowerTest, HandsOutWholeLinesOnly) {
  LogFollower follower = Make();
  follower.GrewTo(10);  // No such file yet.
  follower.GrewTo(Append("one\ntw"));
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"one", true, true}}));
  follower.GrewTo(Append("o\n\nthree"));
  follower.Finish();
  EXPECT_EQ(
      pieces_,
      (std::vector<Piece>{
          {"one", true, true}, {"two", true, true}, {"", true, true}, {"three", true, true}}));
}

TEST_F(LogFollowerTest, ALineOfAMegabyteComesInBoundedPieces) {
  LogFollower follower = Make();
  follower.GrewTo(Append(std::string(1 << 20, 'x') + "\nnext\n"));
  size_t total = 0;
  for (size_t i = 0; i + 1 < pieces_.size(); ++i) {
    EXPECT_EQ(pieces_[i].starts, i == 0);
    EXPECT_LE(pieces_[i].text.size(), LogFollower::kMaxPieceBytes);
    total += pieces_[i].text.size();
  }
  EXPECT_EQ(total, 1u << 20);
  EXPECT_TRUE(pieces_[pieces_.size() - 2].ends);
  EXPECT_EQ(pieces_.back(), (Piece{"next", true, true}));
}

TEST_F(LogFollowerTest, BytesPassUnchanged) {
  LogFollower follower = Make();
  follower.GrewTo(Append("\xff\xfe 10%\r20%\r\n"));
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"\xff\xfe 10%\r20%\r", true, true}}));
}

TEST_F(LogFollowerTest, FedBytesContinueTheFile) {
  LogFollower follower = Make();
  follower.GrewTo(Append("begin "));
  follower.Feed("end\n");
  EXPECT_EQ(pieces_, (std::vector<Piece>{{"begin end", true, true}}));
}

TEST_F(LogFollowerTest, TailReadsTheLastLines) {
  EXPECT_TRUE(TailLines(path_, 3, 1000).empty());
  Append("");
  EXPECT_TRUE(TailLines(path_, 3, 1000).empty());
  Append("a\nb\n\nc");
  EXPECT_EQ(TailLines(path_, 2, 1000), (std::vector<std::string>{"", "c"}));
  EXPECT_EQ(TailLines(path_, 9, 1000), (std::vector<std::string>{"a", "b", "", "c"}));
  Append("\n");
  EXPECT_EQ(TailLines(path_, 1, 1000), (std::vector<std::string>{"c"}));
  Append(std::string(100, 'x') + "\nlast\n");
  EXPECT_EQ(TailLines(path_, 9, 15), (std::vector<std::string>{"...xxxxxxxxx", "last"}));
  EXPECT_TRUE(TailLines("/dev/zero", 1, 10).empty());
}

}  // namespace
}  // namespace fsdprun
