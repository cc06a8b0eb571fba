#include "fsdpctl/screen/crash_restore.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>

namespace fsdprun::top {
namespace {

/// More than anybody reads.
constexpr off_t kErrorBytesMax = 64 << 10;
constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// What a handler may use: nothing that allocates or has a constructor.
termios saved_mode;                // NOLINT(*-avoid-non-const-global-variables)
std::array<char, 256> saved_text;  // NOLINT(*-avoid-non-const-global-variables)
size_t saved_length = 0;           // NOLINT(*-avoid-non-const-global-variables)
int errors_kept = -1;              // NOLINT(*-avoid-non-const-global-variables)
int errors_terminal = -1;          // NOLINT(*-avoid-non-const-global-variables)

void Restore(int signal) {
  // Whether it works cannot matter any more.
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, saved_text.data(), saved_length);
  ::tcsetattr(STDOUT_FILENO, TCSANOW, &saved_mode);
  CopyErrors(errors_kept, errors_terminal);
  ::raise(signal);  // SA_RESETHAND: as usual, once this returns.
}

}  // namespace

void RestoreTerminalInCrash(const termios& mode, const std::string& restoring) {
  saved_mode = mode;
  saved_length = std::min(restoring.size(), saved_text.size());
  std::copy_n(restoring.begin(), saved_length, saved_text.begin());
  struct sigaction action {};
  action.sa_handler = Restore;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : kCrashes) {
    ::sigaction(signal, &action, nullptr);
  }
}

void ShowErrorsInCrash(int kept, int terminal) {
  errors_kept = kept;
  errors_terminal = terminal;
}

void CopyErrors(int kept, int terminal) {
  char piece[512];
  for (off_t at = 0; at < kErrorBytesMax;) {
    const ssize_t size = ::pread(kept, piece, sizeof(piece), at);
    if (size <= 0 || ::write(terminal, piece, static_cast<size_t>(size)) != size) {
      return;
    }
    at += size;
  }
}

void CrashAsUsual() {
  for (const int signal : kCrashes) {
    ::signal(signal, SIG_DFL);
  }
}

}  // namespace fsdprun::top
