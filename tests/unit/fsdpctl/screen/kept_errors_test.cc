#include "fsdpctl/screen/kept_errors.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#include "fsdpctl/screen/crash_restore.h"

namespace fsdprun::top {
namespace {

/// What is shown on a terminal: so many bytes.
std::string Read(int master, size_t size) {
  std::string shown;
  char piece[64];
  for (ssize_t n = 1; shown.size() < size && n > 0;) {
    n = ::read(master, piece, sizeof(piece));
    shown.append(piece, static_cast<size_t>(std::max<ssize_t>(0, n)));
  }
  return shown;
}

TEST(KeptErrorsTest, AreShownAfterwards) {
  int master = -1;
  int terminal = -1;
  termios raw{};
  ::cfmakeraw(&raw);
  ASSERT_EQ(::openpty(&master, &terminal, nullptr, &raw, nullptr), 0);
  const int own = ::dup(STDERR_FILENO);
  ::dup2(terminal, STDERR_FILENO);
  auto kept = std::make_unique<KeptErrors>();
  EXPECT_EQ(::write(STDERR_FILENO, "error", 5), 5);
  EXPECT_EQ(::write(terminal, "screen ", 7), 7);
  kept.reset();
  EXPECT_EQ(::write(STDERR_FILENO, "!", 1), 1);
  ::dup2(own, STDERR_FILENO);
  EXPECT_EQ(Read(master, 13), "screen error!");
  ::close(own);
  ::close(master);
  ::close(terminal);
}

TEST(KeptErrorsTest, AreShownAfterACrash) {
  int master = -1;
  int terminal = -1;
  termios raw{};
  ::cfmakeraw(&raw);
  ASSERT_EQ(::openpty(&master, &terminal, nullptr, &raw, nullptr), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::dup2(terminal, STDOUT_FILENO);
    ::dup2(terminal, STDERR_FILENO);
    RestoreTerminalInCrash(raw, "restored ");
    const KeptErrors kept;
    EXPECT_EQ(::write(STDERR_FILENO, "failed", 6), 6);
    std::abort();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  EXPECT_EQ(Read(master, 15), "restored failed");
  ::close(master);
  ::close(terminal);
}

}  // namespace
}  // namespace fsdprun::top
