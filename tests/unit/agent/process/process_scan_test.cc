#include "agent/process/process_scan.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <thread>

namespace fsdprun {
namespace {

TEST(ProcessScanTest, ParsesACommandNameWithParenthesesAndSpaces) {
  ProcessInfo info;
  ASSERT_TRUE(ParseProcStat(
      "42 (a) R 1 (\n) S 7 42 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 18446744073709551615 9",
      info));
  EXPECT_EQ(info.pid, 42);
  EXPECT_EQ(info.state, 'S');
  EXPECT_EQ(info.parent, 7);
  EXPECT_EQ(info.session, 40);
  EXPECT_EQ(info.start_time_ticks, ~uint64_t{0});
}

TEST(ProcessScanTest, RejectsMalformedStatLines) {
  ProcessInfo info;
  for (const char* text : {"", "42", "42 (x", "42 (x)", "42 (x) S", "42 (x) S 1 2",
                           "x (x) S 1 2 3 4", "42 (x) S 1 2 3 4 5 6"}) {
    EXPECT_FALSE(ParseProcStat(text, info)) << text;
  }
}

TEST(ProcessScanTest, FindsThisProcess) {
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  const auto self = std::find_if(processes.begin(), processes.end(),
                                 [](const auto& p) { return p.pid == ::getpid(); });
  ASSERT_NE(self, processes.end());
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->session, ::getsid(0));
  EXPECT_FALSE(self->IsDead());
}

// A child that has a child; both live until the pipe is closed. Returns the child's pid.
pid_t ForkTwice(int keep_alive_fd, int unused_fd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(unused_fd);
    ::fork();
    char byte = 0;
    ::_exit(::read(keep_alive_fd, &byte, 1) == 0 ? 0 : 1);
  }
  return child;
}

size_t CountBelow(const std::vector<ProcessInfo>& processes, pid_t parent) {
  return static_cast<size_t>(std::count_if(processes.begin(), processes.end(),
                                           [parent](const auto& p) { return p.parent == parent; }));
}

TEST(ProcessScanTest, FindsDescendantsOnlyAndNotBelowTheSkipped) {
  EXPECT_FALSE(HasAnyChild());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  // Forked by another thread: children belong to the thread that made them.
  pid_t child = 0;
  std::promise<void> may_end;
  std::promise<void> has_forked;
  std::thread forker([&] {
    child = ForkTwice(ends[0], ends[1]);
    has_forked.set_value();
    may_end.get_future().wait();
  });
  has_forked.get_future().wait();
  std::vector<ProcessInfo> processes;
  do {
    ScanDescendants(::getpid(), {}, processes);
  } while (CountBelow(processes, child) == 0);
  EXPECT_EQ(processes.size(), 3u);
  EXPECT_EQ(CountBelow(processes, ::getpid()), 1u);
  ScanDescendants(::getpid(),
                  {.skips_children = [child](const ProcessInfo& p) { return p.pid == child; }},
                  processes);
  EXPECT_EQ(processes.size(), 2u);
  ScanDescendants(::getpid(), {.leaves_out = [child](pid_t pid) { return pid == child; }},
                  processes);
  EXPECT_EQ(processes.size(), 1u);
  EXPECT_TRUE(HasAnyChild());
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(HasAnyChild());
  may_end.set_value();
  forker.join();
}

TEST(ProcessScanTest, MarksDescendantsAlsoAcrossWrappedPids) {
  // 900 -> 5 -> 901 -> 3, and 6 -> 7 apart.
  std::vector<ProcessInfo> processes = {{.pid = 3, .parent = 901}, {.pid = 5, .parent = 900},
                                        {.pid = 6, .parent = 1},   {.pid = 7, .parent = 6},
                                        {.pid = 900, .parent = 1}, {.pid = 901, .parent = 5}};
  std::vector<char> marks = {0, 0, 0, 0, 1, 0};
  MarkDescendants(processes, marks);
  EXPECT_EQ(marks, (std::vector<char>{1, 1, 0, 0, 1, 1}));
}

TEST(ProcessScanTest, AnotherProcessWithTheSamePidIsNotKilled) {
  ProcessInfo self;
  ASSERT_TRUE(ReadProcess(::getpid(), self));
  self.start_time_ticks += 1;
  EXPECT_FALSE(KillExactly(self));
}

}  // namespace
}  // namespace fsdprun
