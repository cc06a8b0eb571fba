#include "launcher/daemon/file_growth.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

class FileGrowthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/file_growth_test_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
    Write("file");
  }
  void TearDown() override { RemoveFolder(folder_); }

  void Write(const std::string& name) { std::ofstream(folder_ + "/" + name, std::ios::app) << "x"; }

  /// Runs until a write was told of; the loop is this thread's.
  void SeesAWrite() {
    EventLoop loop;
    FileGrowth growth(loop);
    ASSERT_TRUE(growth.is_valid());
    int told = 0;
    const int watch = growth.Watch(folder_ + "/file", [&] {
      if (++told == 2) {
        loop.Stop();
      } else {
        Write("file");
      }
    });
    EXPECT_NE(watch, -1);
    Write("file");
    loop.Run();
    growth.Unwatch(watch);
    EXPECT_EQ(growth.Watch(folder_ + "/no such", [] {}), -1);
  }

  std::string folder_;
};

TEST_F(FileGrowthTest, TellsOfWrites) { SeesAWrite(); }

TEST_F(FileGrowthTest, TellsOfWritesAlsoWhereTheSystemHasNoMoreWatches) {
  std::thread([this] {
    ASSERT_TRUE(FailFromNowOn({.number = SYS_inotify_add_watch, .error = ENOSPC}));
    EventLoop loop;
    FileGrowth growth(loop);
    const int watch = growth.Watch(folder_ + "/file", [&loop] { loop.Stop(); });
    EXPECT_LT(watch, -1);
    loop.Run();
    growth.Unwatch(watch);
  }).join();
}

}  // namespace
}  // namespace fsdprun
