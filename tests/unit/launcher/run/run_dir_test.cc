#include "launcher/run/run_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/unique_fd.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

class RunDirChangeTest : public ::testing::Test {
 protected:
  RunDirChangeTest() { ::mkdir(old_.c_str(), 0700); }
  ~RunDirChangeTest() override { ::rmdir(old_.c_str()); }

  void Change(RunDirChange::MakeDirs make, Duration limit = std::chrono::seconds(60)) {
    change_ = std::make_unique<RunDirChange>(
        loop_, old_, std::move(make),
        [this](const RunDirChange::Result& result) {
          EXPECT_FALSE(result_.has_value()) << "told twice";
          result_ = result;
          waiter_.Notice();
        },
        limit);
  }
  bool RunUntilTold() {
    return waiter_.RunUntil([this] { return result_.has_value(); });
  }

  const std::string old_ = ::testing::TempDir() + "run_dir_" + std::to_string(::getpid());
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::optional<RunDirChange::Result> result_;
  std::unique_ptr<RunDirChange> change_;
};

TEST_F(RunDirChangeTest, MakesTheNewOneAndRemovesTheEmptyOne) {
  Change([] { return RunDirs{.logs = "/new"}; });
  ASSERT_TRUE(RunUntilTold());
  EXPECT_EQ(result_->dirs->logs, "/new");
  EXPECT_TRUE(result_->is_old_removed);
  EXPECT_NE(::access(old_.c_str(), F_OK), 0);
}

TEST_F(RunDirChangeTest, KeepsTheOldOneWithoutANewOne) {
  Change([] { return absl::UnavailableError("no space"); });
  ASSERT_TRUE(RunUntilTold());
  EXPECT_EQ(result_->dirs.status().message(), "no space");
  EXPECT_FALSE(result_->is_old_removed);
  EXPECT_EQ(::access(old_.c_str(), F_OK), 0);
}

TEST_F(RunDirChangeTest, AFileSystemThatHangsIsGivenUpOnce) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto hang = std::make_shared<UniqueFd>(ends[0]);
  UniqueFd write_end(ends[1]);
  Change(
      [hang]() -> absl::StatusOr<RunDirs> {
        char byte = 0;
        [[maybe_unused]] const ssize_t n = ::read(hang->get(), &byte, 1);
        return RunDirs{.logs = "/late"};
      },
      std::chrono::milliseconds(20));
  ASSERT_TRUE(RunUntilTold());
  EXPECT_EQ(result_->dirs.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(result_->dirs.status().message()), HasSubstr("did not answer"));
  write_end.reset();
  EXPECT_TRUE(waiter_.PollUntil([this] { return ::access(old_.c_str(), F_OK) != 0; }));
}

// The loop runs only after the limit, as if this process had been stopped meanwhile.
TEST_F(RunDirChangeTest, AnAnswerThatCameDuringAPauseCounts) {
  Change([] { return RunDirs{.logs = "/new"}; }, std::chrono::milliseconds(1));
  while (::access(old_.c_str(), F_OK) == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(RunUntilTold());
  EXPECT_TRUE(result_->dirs.ok());
}

TEST_F(RunDirChangeTest, FoldersWithoutFilesAreRemovedDepthFirst) {
  const std::filesystem::path old(old_);
  std::filesystem::create_directories(old / "attempt_0" / "0");
  std::filesystem::create_directories(old / "attempt_1" / "0");
  std::ofstream(old / "attempt_1" / "0" / "stdout.log") << "text";
  EXPECT_FALSE(RemoveEmptyFolders(loop_, old_));
  EXPECT_FALSE(std::filesystem::exists(old / "attempt_0"));
  EXPECT_TRUE(std::filesystem::exists(old / "attempt_1" / "0" / "stdout.log"));
  std::filesystem::remove(old / "attempt_1" / "0" / "stdout.log");
  EXPECT_TRUE(RemoveEmptyFolders(loop_, old_));
  EXPECT_FALSE(std::filesystem::exists(old));
}

}  // namespace
}  // namespace fsdprun
