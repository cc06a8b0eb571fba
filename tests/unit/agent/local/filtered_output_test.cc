#include "agent/local/filtered_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/log.h"

namespace fsdprun {
namespace {

using keeper::Stream;

std::vector<std::string>& FilteredWarnings() {
  static std::vector<std::string> warnings;
  return warnings;
}

class FilteredOutputTest : public ::testing::Test {
 protected:
  FilteredOutputTest() {
    FilteredWarnings().clear();
    SetLogSink([](LogLevel, absl::string_view line) { FilteredWarnings().emplace_back(line); });
    folder_ = ::testing::TempDir() + "/filtered_XXXXXX";
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
  }
  ~FilteredOutputTest() override {
    SetLogSink([](LogLevel, absl::string_view line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    });
    for (const char* name : {"/log", "/a", "/b", "/fifo"}) {
      ::unlink((folder_ + name).c_str());
    }
    ::rmdir(folder_.c_str());
  }
  std::string Content(const std::string& name) const {
    std::ifstream file(folder_ + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  OutputPump::Route RouteTo(const std::string& name, const std::string& log = "") const {
    return {.path = log, .format = LineFormat::Prefixed("P:", {"x"}), .target = folder_ + name};
  }

  std::string folder_;
  EventLoop loop_;
};

TEST_F(FilteredOutputTest, LinesGoToTheFileOfTheirRoute) {
  const std::string log = folder_ + "/log";
  std::ofstream(log) << "x1\nno\nx";
  FilteredOutput output(loop_);
  output.pump().Follow(0, Stream::kStdout, RouteTo("/a", log));
  output.pump().Grew(0, Stream::kStdout, 7);
  output.pump().Follow(0, Stream::kStdout, RouteTo("/b"));
  output.pump().Data(0, Stream::kStdout, "no\nx2\n");
  output.pump().Data(1, Stream::kStdout, "x of a stream without a route\n");
  output.Finish();
  EXPECT_EQ(Content("/a"), "P:x1\nP:x\n");
  EXPECT_EQ(Content("/b"), "P:x2\n");
  EXPECT_TRUE(FilteredWarnings().empty());
}

TEST_F(FilteredOutputTest, WhatCannotBeWrittenIsCounted) {
  FilteredOutput output(loop_);
  output.pump().Follow(0, Stream::kStdout, RouteTo("/missing/a"));
  output.pump().Data(0, Stream::kStdout, "x1\nno\nx2\n");
  output.Finish();
  output.pump().Data(0, Stream::kStdout, "x3\n");
  output.Finish();
  output.Finish();
  ASSERT_EQ(FilteredWarnings().size(), 3u);
  EXPECT_NE(FilteredWarnings()[0].find("cannot write " + folder_ + "/missing/a: No such file"),
            std::string::npos);
  EXPECT_NE(FilteredWarnings()[1].find("2 lines are missing in"), std::string::npos);
  EXPECT_NE(FilteredWarnings()[2].find("1 line is missing in"), std::string::npos);
}

TEST_F(FilteredOutputTest, AFileSystemThatHangsDoesNotDelayTheEndForLong) {
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);  // Opening it for writing does not return.
  UniqueFd reader;
  FilteredOutput output(loop_, std::chrono::milliseconds(500));
  output.pump().Follow(0, Stream::kStdout, RouteTo("/fifo"));
  output.pump().Data(0, Stream::kStdout, "x1\n");
  output.pump().Data(0, Stream::kStdout, "x2\n");
  output.Finish();
  ASSERT_EQ(FilteredWarnings().size(), 1u);
  EXPECT_NE(FilteredWarnings()[0].find("2 lines are missing in"), std::string::npos);
  EXPECT_NE(FilteredWarnings()[0].find("does not answer"), std::string::npos);
  EXPECT_TRUE(output.Await(MonoNow()));
  // What it wrote late disturbs nothing.
  output.pump().Follow(0, Stream::kStdout, RouteTo("/a"));
  output.pump().Data(0, Stream::kStdout, "x3\n");
  reader.reset(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // Ends the hang.
  const MonoTime end = MonoNow() + std::chrono::seconds(60);
  while (Content("/a") != "P:x3\n" && MonoNow() < end) {
    output.Await(end);
  }
  EXPECT_EQ(Content("/a"), "P:x3\n");
}

}  // namespace
}  // namespace fsdprun
