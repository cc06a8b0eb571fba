#include "base/spawn.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "base/unique_fd.h"

namespace fsdprun {
namespace {

struct Ends {
  UniqueFd read;
  UniqueFd write;
};

Ends MakePipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::string ReadAll(const UniqueFd& fd) {
  std::string text;
  std::array<char, 256> piece{};
  ssize_t n = 0;
  while ((n = ::read(fd.get(), piece.data(), piece.size())) > 0) {
    text.append(piece.data(), static_cast<size_t>(n));
  }
  return text;
}

TEST(SpawnDetached, HasWhatItIsGivenAndNothingElse) {
  Ends out = MakePipe();
  Ends other = MakePipe();
  const std::string script = "echo $FRUIT; echo three >&3; ls /proc/self/fd";
  const auto pid =
      SpawnDetached({.path = "/bin/sh",
                     .command = {"/bin/sh", "-c", script},
                     .environment = {"FRUIT=plum", "PATH=/usr/bin:/bin"},
                     .descriptors = {{out.write.get(), STDOUT_FILENO}, {out.write.get(), 3}}});
  ASSERT_TRUE(pid.ok()) << pid.status();
  out.write.reset();
  // 4 is the folder that ls reads.
  EXPECT_EQ(ReadAll(out.read).substr(0, 21), "plum\nthree\n0\n1\n2\n3\n4\n");
  int status = 0;
  EXPECT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_EQ(status, 0);
}

TEST(SpawnDetached, IsInASessionOfItsOwnWithNoSignalBlocked) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto pid = SpawnDetached({.path = "/bin/sleep",
                                  .command = {"/bin/sleep", "600"},
                                  .environment = {},
                                  .descriptors = {}});
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_EQ(::getsid(*pid), *pid);
  ::kill(*pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(::waitpid(*pid, &status, 0), *pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

// A descriptor that has the number of another one's place.
TEST(SpawnDetached, DescriptorsMayTradePlaces) {
  Ends first = MakePipe();
  Ends second = MakePipe();
  const int a = first.write.get();
  const int b = second.write.get();
  const std::string script = "echo a >&" + std::to_string(b) + "; echo b >&" + std::to_string(a);
  const auto pid = SpawnDetached({.path = "/bin/bash",
                                  .command = {"/bin/bash", "-c", script},
                                  .environment = {},
                                  .descriptors = {{a, b}, {b, a}}});
  ASSERT_TRUE(pid.ok()) << pid.status();
  first.write.reset();
  second.write.reset();
  EXPECT_EQ(ReadAll(first.read), "a\n");
  EXPECT_EQ(ReadAll(second.read), "b\n");
  ::waitpid(*pid, nullptr, 0);
}

TEST(SpawnDetached, NamesTheProgramThatCannotBeStarted) {
  const auto pid = SpawnDetached(
      {.path = "/no/such", .command = {"/no/such"}, .environment = {}, .descriptors = {}});
  EXPECT_EQ(pid.status().message(), "start /no/such: No such file or directory");
}

TEST(OwnEnvironment, IsThatOfThisProcess) {
  ::setenv("FSDPRUN_SPAWN_TEST", "x=y", 1);
  const std::vector<std::string> variables = OwnEnvironment();
  EXPECT_EQ(std::count(variables.begin(), variables.end(), "FSDPRUN_SPAWN_TEST=x=y"), 1);
}

}  // namespace
}  // namespace fsdprun
