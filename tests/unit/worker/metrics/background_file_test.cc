#include "worker/metrics/background_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace fsdprun::worker {
namespace {

using Clock = BackgroundFile::Clock;
constexpr auto kLong = std::chrono::hours(1);

/// What was appended; shared with the thread.
struct Written {
  std::mutex mu;
  std::string bytes;
  int fails_with = 0;
  std::promise<void> first_attempt;
  bool was_attempted = false;

  int Append(std::string_view more) {
    const std::lock_guard lock(mu);
    if (!std::exchange(was_attempted, true)) {
      first_attempt.set_value();
    }
    if (fails_with == 0) {
      bytes.append(more);
    }
    return fails_with;
  }
  void FailWith(int error) {
    const std::lock_guard lock(mu);
    fails_with = error;
  }
};

BackgroundFile::Append To(const std::shared_ptr<Written>& written) {
  return [written](std::string_view bytes) { return written->Append(bytes); };
}

TEST(BackgroundFileTest, FaultIsToldAndNothingIsLostOnceItHasPassed) {
  const auto written = std::make_shared<Written>();
  written->FailWith(ENOSPC);
  {
    BackgroundFile file("the file", To(written), {});
    file.Add("one ");
    written->first_attempt.get_future().wait();
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(120);
    while (!file.Fault(Clock::now()) && Clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(file.Fault(Clock::now()), "cannot write the file: No space left on device");
    written->FailWith(0);
    file.Add("two ");
  }
  EXPECT_EQ(written->bytes, "one two ");
}

/// A file whose first append returns when it is released.
struct Hung {
  std::promise<void> began;
  std::promise<void> released;
  std::shared_future<void> release = released.get_future().share();
  std::atomic<bool> has_begun{false};

  int Append() {
    if (!has_begun.exchange(true)) {
      began.set_value();
      release.wait();
    }
    return 0;
  }
};

TEST(BackgroundFileTest, HungFileCostsNoTimeAndBoundedMemory) {
  const auto hung = std::make_shared<Hung>();
  {
    BackgroundFile file("the file", [hung](std::string_view) { return hung->Append(); },
                        {.kept_bytes = 10, .end_max = std::chrono::milliseconds(1)});
    file.Add("12345");
    hung->began.get_future().wait();
    EXPECT_EQ(file.Fault(Clock::now()), std::nullopt);
    file.Add("67890");
    file.Add("x");
    file.Add("y");
    const std::optional<std::string> fault = file.Fault(Clock::now() + kLong);
    ASSERT_TRUE(fault);
    EXPECT_TRUE(fault->starts_with("cannot write the file: no answer for 36")) << *fault;
    EXPECT_NE(fault->find("(2 records are lost)"), std::string::npos) << *fault;
  }
  // The thread has been left behind, and ends by itself.
  hung->released.set_value();
}

TEST(BackgroundFileTest, EndTellsWhatIsLost) {
  const auto written = std::make_shared<Written>();
  written->FailWith(ENOSPC);
  BackgroundFile file("the file", To(written), {});
  file.Add("one");
  EXPECT_EQ(file.End(), "cannot write the file: No space left on device");
  BackgroundFile well("the file", To(std::make_shared<Written>()), {});
  well.Add("one");
  EXPECT_EQ(well.End(), std::nullopt);
}

TEST(BackgroundFileTest, EndOfAHungFileTellsThatRecordsAreLost) {
  const auto hung = std::make_shared<Hung>();
  {
    BackgroundFile file("the file", [hung](std::string_view) { return hung->Append(); },
                        {.end_max = std::chrono::milliseconds(1)});
    file.Add("one");
    hung->began.get_future().wait();
    const std::optional<std::string> fault = file.End();
    ASSERT_TRUE(fault);
    EXPECT_NE(fault->find("its last records were not written in time"), std::string::npos);
  }
  hung->released.set_value();
}

TEST(BackgroundFileTest, EndWritesAllThatIsThere) {
  const auto written = std::make_shared<Written>();
  {
    BackgroundFile file("the file", To(written), {});
    for (int i = 0; i < 100; ++i) {
      file.Add("0123456789");
    }
  }
  EXPECT_EQ(written->bytes.size(), 1000u);
}

class NewAppendedFileTest : public testing::Test {
 protected:
  ~NewAppendedFileTest() override { std::filesystem::remove_all(folder_); }

  static std::string ReadAll(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const std::string folder_ = testing::TempDir() + "appended_" + std::to_string(getpid());
};

TEST_F(NewAppendedFileTest, NeverContinuesAnotherFile) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "another's";
  EXPECT_EQ(NewAppendedFile(folder_ + "/file").Write("mine"), EEXIST);
  EXPECT_EQ(ReadAll(folder_ + "/file"), "another's");
}

TEST_F(NewAppendedFileTest, MakesItsFolderWithTheFirstBytes) {
  NewAppendedFile file(folder_ + "/a/b/file");
  EXPECT_FALSE(std::filesystem::exists(folder_));
  EXPECT_EQ(file.Write("one "), 0);
  EXPECT_EQ(file.Write("two"), 0);
  EXPECT_EQ(ReadAll(folder_ + "/a/b/file"), "one two");
}

TEST_F(NewAppendedFileTest, WhatDoesNotFitLeavesNoPart) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  NewAppendedFile file(folder_ + "/file");
  EXPECT_EQ(file.Write("12345"), 0);
  const rlimit small{8, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_EQ(file.Write("67890"), EFBIG);
  EXPECT_EQ(ReadAll(folder_ + "/file"), "12345");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(file.Write("67890"), 0);
  EXPECT_EQ(ReadAll(folder_ + "/file"), "1234567890");
  std::signal(SIGXFSZ, old_action);
}

}  // namespace
}  // namespace fsdprun::worker
