#include "agent/process/spawn.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "tests/unit/base/failing_system_call.h"

namespace fsdprun::keeper {
namespace {

TEST(MayShareMemoryTest, NotBeforeTheKernelEndsThoseAloneThatDumpCore) {
  for (const char* release :
       {"5.16.0", "5.16-rc1", "5.19.0-32-generic", "6.1.0-18-amd64", "10.0"}) {
    EXPECT_TRUE(MayShareMemory(release)) << release;
  }
  for (const char* release :
       {"5.15.0-91-generic", "5.4.0", "4.18.0-513.el8.x86_64", "5", "", "Linux", "-1.99"}) {
    EXPECT_FALSE(MayShareMemory(release)) << release;
  }
}

TEST(StartChildTest, FolderWhoseFileServerIsGoneIsPassedOver) {
  bool is_filtered = false;
  ChildFailure failure;
  std::thread([&] {
    is_filtered = FailFromNowOn({.number = SYS_execve, .error = ESTALE});
    SpawnPlan plan({.argv = {"sh"}, .environment = {"PATH=/none:/bin:/usr/bin"}}, -1);
    const StartedChild child = StartChild(plan, {});
    pollfd readable{.fd = child.failure_pipe, .events = POLLIN, .revents = 0};
    ::poll(&readable, 1, -1);
    EXPECT_EQ(::read(child.failure_pipe, &failure, sizeof(failure)), ssize_t{sizeof(failure)});
    ::waitpid(child.pid, nullptr, 0);
    ::close(child.failure_pipe);
    ::close(child.pidfd);
  }).join();
  ASSERT_TRUE(is_filtered) << "this kernel takes no filter of system calls";
  EXPECT_EQ(failure.step, ChildFailure::Step::kExec);
  EXPECT_EQ(failure.error, ESTALE);
  EXPECT_EQ(failure.candidate, 2);
}

}  // namespace
}  // namespace fsdprun::keeper
