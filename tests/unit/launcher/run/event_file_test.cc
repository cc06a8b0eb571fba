#include "launcher/run/event_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

class EventFileTest : public testing::Test {
 protected:
  EventFileTest() {
    char name[] = "/tmp/fsdprun_test_XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~EventFileTest() override { RemoveFolder(folder_); }

  std::string Path() const { return folder_ / "events.jsonl"; }
  std::string Content() const {
    std::ifstream file(Path());
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static MonoTime Soon() { return MonoNow() + std::chrono::seconds(60); }

  std::filesystem::path folder_;
  EventLoop loop_;
};

TEST_F(EventFileTest, LinesAreAppendedInTheirOrder) {
  std::ofstream(Path()) << "before\n";
  EventFile file(loop_, Path());
  for (int i = 0; i < 5; ++i) {
    file.Append("line " + std::to_string(i));
  }
  file.Finish(Soon());
  EXPECT_EQ(Content(), "before\nline 0\nline 1\nline 2\nline 3\nline 4\n");
}

TEST_F(EventFileTest, AFileCanBeLeftBesideTheLines) {
  std::ofstream(folder_ / "ledger.json") << "of the last run, which was longer";
  EventFile file(loop_, Path());
  file.Append("line");
  file.LeaveBeside("ledger.json", "{}\n");
  file.Finish(Soon());
  std::ifstream left(folder_ / "ledger.json");
  std::stringstream text;
  text << left.rdbuf();
  EXPECT_EQ(text.str(), "{}\n");
  EXPECT_EQ(Content(), "line\n");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "ledger.json.new"));
}

TEST_F(EventFileTest, WithoutAnEventThereIsNoFile) {
  EventFile file(loop_, Path());
  file.Finish(Soon());
  EXPECT_FALSE(std::filesystem::exists(Path()));
}

TEST_F(EventFileTest, AFullDiskIsToldOfOnceAndTheLossIsCounted) {
  EventFile file(loop_, "/dev/full");
  testing::internal::CaptureStderr();
  file.Append("first");
  file.Append("second");
  file.Append("third");
  file.Finish(Soon());
  const std::string told = testing::internal::GetCapturedStderr();
  const std::string warning = "cannot write events to /dev/full: No space left on device";
  const size_t at = told.find(warning);
  ASSERT_NE(at, std::string::npos) << told;
  EXPECT_EQ(told.find(warning, at + 1), std::string::npos) << told;
  EXPECT_NE(told.find("/dev/full lacks 3 event(s) of this run"), std::string::npos) << told;
}

/// A pipe that nobody reads cannot be opened: so does a file system that hangs.
TEST_F(EventFileTest, AFileSystemThatHangsIsGivenUpAndItsEventsAreBounded) {
  ASSERT_EQ(::mkfifo(Path().c_str(), 0600), 0);
  {
    EventFile file(loop_, Path());
    testing::internal::CaptureStderr();
    for (size_t i = 0; i < EventFile::kMaxWaiting + 10; ++i) {
      file.Append("event");
    }
    file.Finish(MonoNow() + std::chrono::milliseconds(10));
    EXPECT_NE(testing::internal::GetCapturedStderr().find("does not answer"), std::string::npos);
  }
  UniqueFd reader(::open(Path().c_str(), O_RDONLY | O_CLOEXEC));  // Its thread may end now.
  EXPECT_TRUE(reader.valid());
}

}  // namespace
}  // namespace fsdprun
