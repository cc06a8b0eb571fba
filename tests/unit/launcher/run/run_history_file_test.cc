#include "launcher/run/run_history_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "agent/local/file_thread.h"
#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

/// Longer than any disk takes.
constexpr Duration kHistoryWait = std::chrono::seconds(60);

/// The launchers of a job whose runs show no sign of progress.
class RunHistoryFileTest : public testing::Test {
 protected:
  RunHistoryFileTest() {
    char name[] = "/tmp/fsdprun_test_XXXXXX";
    home_ = ::mkdtemp(name);
    environment_ = {{"XDG_CONFIG_HOME", home_.string()}, {"SLURM_CLUSTER_NAME", "test"}};
  }
  ~RunHistoryFileTest() override { RemoveFolder(home_); }

  static LaunchPlan Program(const std::string& program) {
    LaunchPlan plan;
    plan.scheduler_job = SchedulerJob{.name = "7"};
    plan.program = {program};
    return plan;
  }
  static RunEnd Fruitless() {
    return {.kind = RunEnd::Kind::kStopped, .signal = SIGUSR1, .is_short = true};
  }
  /// How many runs are counted after this one.
  int Remember(RunHistoryFile& file, int restarts) {
    std::optional<int> fruitless;
    file.Remember(Fruitless(), restarts, [&](const RunsInARow& runs) {
      fruitless = runs.fruitless;
      waiter_.Notice();
    });
    EXPECT_TRUE(waiter_.RunUntil([&] { return fruitless.has_value(); }));
    return fruitless.value_or(-1);
  }
  int RememberRunOf(const std::string& program, int restarts) {
    const auto file = Open(program);
    return Remember(*file, restarts);
  }
  std::unique_ptr<RunHistoryFile> Open(const std::string& program,
                                       Duration timeout = kHistoryWait) {
    auto files = std::make_unique<FileThread>(loop_);
    files_ = files.get();
    return Open(program, timeout, std::move(files));
  }
  std::unique_ptr<RunHistoryFile> Open(const std::string& program, Duration timeout,
                                       std::unique_ptr<FileThread> files) {
    return std::make_unique<RunHistoryFile>(loop_, Program(program), environment_, std::move(files),
                                            timeout);
  }
  std::filesystem::path Folder() const { return home_ / "fsdprun/slurm-runs"; }
  std::filesystem::path Record() const { return Folder() / "test.7.train.py"; }
  /// From now on the file system answers when the test says so.
  void Hang(FileThread& files) {
    files.Run([answers = answers_.get_future().share()] { answers.wait(); }, [] {});
  }
  /// From now on, for the latest that was opened.
  void Fail(const FailingSystemCall& call) {
    files_->Run([call] { EXPECT_TRUE(FailFromNowOn(call)) << "this kernel takes no filters"; },
                [] {});
  }
  /// A folder in the record's place can neither be read nor written.
  void SpoilRecord() {
    std::filesystem::remove(Record());
    std::filesystem::create_directories(Record() / "x");
  }

  std::filesystem::path home_;
  Environment environment_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::promise<void> answers_;
  /// Of the latest that was opened.
  FileThread* files_ = nullptr;
};

TEST_F(RunHistoryFileTest, LauncherThatHasNotBeenStoppedRemovesNothing) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  Open("train.py")->Forget();
  Open("prepare.py")->Forget();
  EXPECT_EQ(RememberRunOf("train.py", 1), 2);
}

TEST_F(RunHistoryFileTest, LaunchersOfTwoProgramsAreCountedApart) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  EXPECT_EQ(RememberRunOf("prepare.py", 1), 1);
  EXPECT_EQ(RememberRunOf("train.py", 2), 2);
}

TEST_F(RunHistoryFileTest, LaunchersThatWriteAtOnceLeaveOneWholeRecord) {
  const auto one = Open("train.py");
  const auto other = Open("train.py");
  EXPECT_EQ(Remember(*one, 0), 1);
  EXPECT_EQ(Remember(*other, 0), 1);
  EXPECT_EQ(RememberRunOf("train.py", 1), 2);
}

TEST_F(RunHistoryFileTest, WhatWasReadCountsAlsoIfNothingCanBeWritten) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  const auto file = Open("train.py");
  files_->Run([this] { SpoilRecord(); }, [] {});
  EXPECT_EQ(Remember(*file, 5), 2);
}

// As of a quota for files.
TEST_F(RunHistoryFileTest, RunsAreCountedWhereThereIsNoRoomForAnotherFile) {
  for (int run = 0; run < 3; ++run) {
    const auto file = Open("train.py");
    if (run > 0) {
      Fail({.number = SYS_openat, .error = EDQUOT, .bits = O_CREAT, .argument = 2});
    }
    EXPECT_EQ(Remember(*file, run), run + 1);
  }
}

// A network file system tells of a full quota when a file is closed; what it has then may be
// nothing.
TEST_F(RunHistoryFileTest, FileThatWasNotClosedWellDoesNotTakeThePlaceOfTheRecord) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  struct stat before {};
  ASSERT_EQ(::stat(Record().c_str(), &before), 0);
  const auto file = Open("train.py");
  Fail({.number = SYS_close, .error = EDQUOT});
  EXPECT_EQ(Remember(*file, 1), 2);
  struct stat after {};
  ASSERT_EQ(::stat(Record().c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(Folder()), {}), 1);
}

TEST_F(RunHistoryFileTest, RecordThatCannotBeReadAtTheStartIsReadAtTheEnd) {
  SpoilRecord();
  const auto file = Open("train.py");
  files_->Run(
      [this] {
        std::filesystem::remove_all(Record());
        std::ofstream(Record()) << EncodePastRun({.restarts = 4, .runs = {.fruitless = 1}});
      },
      [] {});
  EXPECT_EQ(Remember(*file, 5), 2);
}

TEST_F(RunHistoryFileTest, WhatWasReadCountsIfTheFileSystemHangsAtTheEnd) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  const auto file = Open("train.py", std::chrono::milliseconds(10));
  bool is_read = false;
  files_->Run([] {},
              [this, &is_read] {
                is_read = true;
                waiter_.Notice();
              });
  ASSERT_TRUE(waiter_.RunUntil([&is_read] { return is_read; }));
  Hang(*files_);
  EXPECT_EQ(Remember(*file, 5), 2);
  answers_.set_value();
}

TEST_F(RunHistoryFileTest, RunCountsAloneIfTheFileSystemHangsFromTheStart) {
  EXPECT_EQ(RememberRunOf("train.py", 0), 1);
  auto files = std::make_unique<FileThread>(loop_);
  Hang(*files);
  const auto file = Open("train.py", std::chrono::milliseconds(10), std::move(files));
  EXPECT_EQ(Remember(*file, 5), 1);
  answers_.set_value();
}

TEST_F(RunHistoryFileTest, EveryRunCountsWhereNothingCanBeReadOrWritten) {
  SpoilRecord();
  const auto file = Open("train.py");
  EXPECT_EQ(Remember(*file, 5), 6);
}

TEST_F(RunHistoryFileTest, LastRunLeavesNothing) {
  const auto file = Open("train.py");
  EXPECT_EQ(Remember(*file, 4), 1);
  EXPECT_FALSE(std::filesystem::is_empty(Folder()));
  file->Forget();
  EXPECT_TRUE(std::filesystem::is_empty(Folder()));
}

TEST_F(RunHistoryFileTest, RecordsOfLaunchersThatWereKilledGo) {
  std::filesystem::create_directories(Folder());
  std::ofstream(Folder() / "test.6.train.py") << "of long ago";
  std::filesystem::last_write_time(
      Folder() / "test.6.train.py",
      std::filesystem::file_time_type::clock::now() - std::chrono::hours(24 * 90));
  std::ofstream(Folder() / "test.5.train.py") << "of now";
  const auto file = Open("train.py");
  Remember(*file, 0);
  EXPECT_TRUE(
      waiter_.PollUntil([this] { return !std::filesystem::exists(Folder() / "test.6.train.py"); }));
  EXPECT_TRUE(std::filesystem::exists(Folder() / "test.5.train.py"));
}

}  // namespace
}  // namespace fsdprun
