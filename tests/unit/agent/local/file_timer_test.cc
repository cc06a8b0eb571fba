#include "agent/local/file_timer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using testing::HasSubstr;

class FileTimerTest : public testing::Test {
 protected:
  FileTimerTest()
      : path_(absl::StrCat(testing::TempDir(), "timer_", ::getpid(), "_",
                           testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove(path_);
  }
  ~FileTimerTest() override { std::filesystem::remove(path_); }

  void Open() { Take(FileTimer::Open(loop_, path_)); }
  void Take(absl::StatusOr<std::unique_ptr<FileTimer>> timer) {
    ASSERT_TRUE(timer.ok()) << timer.status();
    timer_ = *std::move(timer);
    timer_->SetCallbacks({.on_expired =
                              [this](const ExpiredTimer& expired) {
                                expired_.push_back(expired.scope);
                                waiter_.Notice();
                              },
                          .on_request =
                              [this] {
                                ++requests_;
                                waiter_.Notice();
                              }});
  }
  /// As FileTimerClient: opens the FIFO for each line.
  void Write(const std::string& text) const {
    const UniqueFd fifo(::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    ASSERT_TRUE(fifo.valid());
    ASSERT_EQ(::write(fifo.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  static std::string Line(const std::string& scope, double in_s, pid_t pid = ::getpid()) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    return absl::StrCat(R"({"version":1,"pid":)", pid, R"(,"scope_id":")", scope,
                        R"(","expiration_time":)", absl::StrFormat("%.6f", now + in_s),
                        R"(,"signal":9})", "\n");
  }
  std::string Release(const std::string& scope) const {
    return absl::StrCat(R"({"version":1,"pid":)", ::getpid(), R"(,"scope_id":")", scope,
                        R"(","expiration_time":-1,"signal":0})", "\n");
  }

  const std::string path_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<FileTimer> timer_;
  std::vector<std::string> expired_;
  int requests_ = 0;
};

TEST_F(FileTimerTest, OtherFilesAndFifosInUseAreLeftAlone) {
  std::ofstream(path_) << "precious";
  const auto taken = FileTimer::Open(loop_, path_);
  EXPECT_THAT(std::string(taken.status().message()), HasSubstr("something else has this name"));
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
  std::ofstream(path_, std::ios::trunc).close();
  Open();  // mktemp leaves an empty file.
  EXPECT_TRUE(absl::IsAlreadyExists(FileTimer::Open(loop_, path_).status()));
  EXPECT_THAT(std::string(FileTimer::Open(loop_, "/none/fifo").status().message()),
              HasSubstr("/none/fifo: No such file or directory"));
}

TEST_F(FileTimerTest, AnotherAgentReadsWhatWasWrittenWhileNobodyDid) {
  EXPECT_TRUE(absl::IsNotFound(FileTimer::Adopt(loop_, path_).status()));
  std::ofstream(path_) << "precious";
  EXPECT_TRUE(absl::IsNotFound(FileTimer::Adopt(loop_, path_).status()));
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  const UniqueFd keepers(::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  Write(Line("a", 0.05));
  Take(FileTimer::Adopt(loop_, path_));
  ASSERT_TRUE(waiter_.RunUntil([&] { return expired_.size() == 1; }));
  EXPECT_THAT(expired_, testing::ElementsAre("a"));
  timer_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTimerTest, TheFifoIsPrivateAndRemovedAtTheEnd) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0666), 0);  // Of a launcher that was killed.
  Open();
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  timer_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(FileTimerTest, ANameThatSomebodyElseHasTakenIsNotRemoved) {
  Open();
  std::filesystem::remove(path_);
  std::ofstream(path_) << "x";
  timer_.reset();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(FileTimerTest, WhatIsReleasedDoesNotExpire) {
  Open();
  const std::string half = Line("expires", 0.01);
  Write(Line("released", 0.01) + Release("released") + half.substr(0, 20));
  Write(half.substr(20));
  ASSERT_TRUE(waiter_.RunUntil([&] { return !expired_.empty(); }));
  EXPECT_EQ(expired_, std::vector<std::string>{"expires"});
  EXPECT_EQ(requests_, 3);
}

TEST_F(FileTimerTest, BrokenAndOverlongLinesAreSkipped) {
  Open();
  Write("not json\n" + std::string(10'000, 'x') + "\n" + Line("good", 0));
  ASSERT_TRUE(waiter_.RunUntil([&] { return !expired_.empty(); }));
  EXPECT_EQ(expired_, std::vector<std::string>{"good"});
}

TEST_F(FileTimerTest, DeadProcessesHaveNoTimers) {
  Open();
  Write(Line("nobody", 0, 0x7fffffff) + Line("good", 0.01));
  ASSERT_TRUE(waiter_.RunUntil([&] { return !expired_.empty(); }));
  EXPECT_EQ(expired_, std::vector<std::string>{"good"});
}

TEST_F(FileTimerTest, ANewWorldStartsWithoutTimersThatLieUnread) {
  Open();
  Write(Line("old", 0));
  timer_->Clear();
  Write(Line("new", 0.01));
  ASSERT_TRUE(waiter_.RunUntil([&] { return !expired_.empty(); }));
  EXPECT_EQ(expired_, std::vector<std::string>{"new"});
}

}  // namespace
}  // namespace fsdprun
