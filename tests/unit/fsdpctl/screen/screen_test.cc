#include "fsdpctl/screen/screen.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>

namespace fsdprun::top {
namespace {

/// What `run` returns in a process of its own, in which all signals are blocked and whose terminal
/// nobody reads; -1 if it was killed.
int OnTerminal(const std::function<int(Screen&)>& run) {
  int master = -1;
  int terminal = -1;
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  EXPECT_EQ(::openpty(&master, &terminal, nullptr, nullptr, &size), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(terminal, STDIN_FILENO);
    ::dup2(terminal, STDOUT_FILENO);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);
    const absl::StatusOr<std::unique_ptr<Screen>> screen = Screen::Open({{"TERM", "xterm"}});
    ::_exit(screen.ok() ? run(**screen) : 100);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  ::close(master);
  ::close(terminal);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool IsPending(int signal) {
  sigset_t pending;
  ::sigpending(&pending);
  return ::sigismember(&pending, signal) == 1;
}

// ncurses would ignore SIGTSTP while it draws, and what is ignored is thrown away.
TEST(ScreenTest, DrawsWithoutLosingASignal) {
  const auto signals = {SIGTSTP, SIGINT, SIGTERM, SIGWINCH, SIGHUP, SIGQUIT};
  EXPECT_EQ(OnTerminal([&signals](Screen& screen) {
              for (const int signal : signals) {
                ::raise(signal);
              }
              const Frame frame{.lines = {{{.style = Style::kPlain, .text = "drawn"}}}};
              screen.Draw(frame);
              screen.Leave();
              screen.Return();
              screen.Draw(frame);
              int lost = 0;
              for (const int signal : signals) {
                lost += IsPending(signal) ? 0 : 1;
              }
              return lost;
            }),
            0);
}

}  // namespace
}  // namespace fsdprun::top
