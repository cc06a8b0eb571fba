#include "agent/process/log_tail.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace fsdprun {
namespace {

class LogTailTest : public testing::Test {
 protected:
  LogTailTest() : path_(testing::TempDir() + "log_tail_" + std::to_string(::getpid())) {}
  ~LogTailTest() override { std::filesystem::remove(path_); }
  void Append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  const std::string path_;
};

TEST_F(LogTailTest, ReadsTheLastLines) {
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
