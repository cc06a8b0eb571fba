#include "agent/local/file_thread.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

/// Something that hangs until the test ends it.
class Hang {
 public:
  Hang() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    read_end_ = std::make_shared<UniqueFd>(ends[0]);
    write_end_.reset(ends[1]);
  }
  FileThread::Closure Task() const {
    return [fd = read_end_] {
      char byte = 0;
      [[maybe_unused]] const ssize_t n = ::read(fd->get(), &byte, 1);
    };
  }
  void End() { write_end_.reset(); }

 private:
  std::shared_ptr<UniqueFd> read_end_;
  UniqueFd write_end_;
};

TEST(FileThreadTest, WorksElsewhereAndTellsTheLoopInOrder) {
  EventLoop loop;
  LoopWaiter waiter(loop);
  FileThread files(loop);
  const auto here = std::this_thread::get_id();
  std::vector<int> told;
  for (int i = 0; i < 100; ++i) {
    auto there = std::make_shared<std::thread::id>();
    files.Run([there] { *there = std::this_thread::get_id(); },
              [&, there, i] {
                EXPECT_NE(*there, here);
                EXPECT_EQ(std::this_thread::get_id(), here);
                told.push_back(i);
                waiter.Notice();
              });
  }
  EXPECT_TRUE(told.empty());
  ASSERT_TRUE(waiter.RunUntil([&] { return told.size() == 100; }));
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
}

TEST(FileThreadTest, CanBeAwaitedWithoutTheLoop) {
  EventLoop loop;
  FileThread files(loop);
  EXPECT_FALSE(files.Await(MonoNow()));
  bool is_told = false;
  files.Run([] {}, [&] { is_told = true; });
  EXPECT_TRUE(files.Await(MonoNow() + std::chrono::seconds(60)));
  EXPECT_TRUE(is_told);
}

TEST(FileThreadTest, MachineWithoutRoomForAThreadIsNoReasonToEnd) {
  EventLoop loop;
  LoopWaiter waiter(loop);
  FileThread files(loop);
  std::vector<std::string> log;
  bool is_filtered = false;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_clone3, .error = EAGAIN}) &&
                  FailFromNowOn({.number = SYS_clone, .error = EAGAIN});
    files.Run([&] { log.emplace_back("task"); }, [&] { log.emplace_back("then"); });
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  // The next one finds room again.
  files.Run([] {}, [&] { waiter.Notice(); });
  ASSERT_TRUE(waiter.RunUntil([&] { return log.size() == 2; }));
  EXPECT_EQ(log, std::vector<std::string>({"task", "then"}));
}

TEST(FileThreadTest, ATaskThatHangsStopsNeitherTheLoopNorTheEnd) {
  Hang hang;
  EventLoop loop;
  LoopWaiter waiter(loop);
  {
    FileThread files(loop);
    files.Run(hang.Task(), [] { ADD_FAILURE() << "it was told after the end"; });
    EXPECT_FALSE(files.Await(MonoNow()));
    EXPECT_TRUE(waiter.RunUntil([] { return true; }));
  }
  // The thread finds out by itself that nobody is interested any more.
  hang.End();
  EXPECT_TRUE(waiter.RunUntil([] { return true; }));
}

/// What hangs when it is freed, as a file that is closed, until the test ends it; not for longer
/// than a wait for it would be too long.
class HangingFile {
 public:
  HangingFile(std::shared_future<void> end, std::shared_ptr<std::promise<bool>> was_ended)
      : end_(std::move(end)), was_ended_(std::move(was_ended)) {}
  ~HangingFile() {
    was_ended_->set_value(end_.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  }
  HangingFile(const HangingFile&) = delete;
  HangingFile& operator=(const HangingFile&) = delete;

 private:
  const std::shared_future<void> end_;
  const std::shared_ptr<std::promise<bool>> was_ended_;
};

TEST(FileThreadTest, EndDoesNotWaitForWhatDroppedTasksOwn) {
  std::promise<void> end;
  const auto was_ended = std::make_shared<std::promise<bool>>();
  EventLoop loop;
  {
    FileThread files(loop);
    // Still at work when the end begins, and done soon after that.
    files.Run(
        [never = std::promise<void>()]() mutable {
          never.get_future().wait_for(std::chrono::milliseconds(100));
        },
        [] {});
    files.Run([file = std::make_shared<HangingFile>(end.get_future().share(), was_ended)] {},
              [] {});
  }
  end.set_value();
  EXPECT_TRUE(was_ended->get_future().get());
}

}  // namespace
}  // namespace fsdprun
