#include "fsdpctl/doctor/machine/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/run/exec_words.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kPieceBytes = 4096;
/// What a killed process may take, unless it hangs in the kernel.
constexpr Duration kDeath = std::chrono::seconds(1);
constexpr Duration kLook = std::chrono::milliseconds(10);

/// How an attempt to read to the end of `fd` ended.
enum class ReadEnd { kEnd, kLate, kTooMuch };

ReadEnd ReadUntil(int fd, MonoTime deadline, std::string* text) {
  char piece[kPieceBytes];
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()).count();
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = left > 0 ? ::poll(&polled, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) {
      continue;
    }
    if (ready <= 0) {
      return ReadEnd::kLate;
    }
    const ssize_t n = ::read(fd, piece, sizeof(piece));
    if (n <= 0) {
      return ReadEnd::kEnd;
    }
    text->append(piece, static_cast<size_t>(n));
    if (text->size() > kMostBytes) {
      return ReadEnd::kTooMuch;
    }
  }
}

/// The child has ended by then, with `status`. Where pidfds are refused, and there is nothing to
/// wait for, it looks again and again.
bool EndsBy(pid_t child, MonoTime deadline, int* status) {
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  for (;;) {
    if (::waitpid(child, status, WNOHANG) != 0) {
      return true;
    }
    const Duration left = deadline - MonoNow();
    if (left <= Duration{}) {
      return false;
    }
    const Duration pause = ended.valid() ? left : std::min<Duration>(left, kLook);
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(pause).count();
    pollfd polled{.fd = ended.get(), .events = POLLIN, .revents = 0};
    ::poll(&polled, 1, static_cast<int>(ms));  // One of fd -1 only takes the time.
  }
}

/// With what it has started.
void Kill(pid_t child) {
  ::kill(-child, SIGKILL);
  int status = 0;
  EndsBy(child, MonoNow() + kDeath, &status);
}

/// Does not return.
void BeChild(pid_t parent, int write_end, const std::function<void(int)>& act) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(1);
  }
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  act(write_end);
  ::_exit(0);
}

/// Lets `act`, in a child, write to a pipe.
absl::StatusOr<std::string> Ask(const std::function<void(int)>& act, Duration patience) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("make a pipe: ", ErrorText(errno)));
  }
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return absl::UnavailableError(absl::StrCat("start a process: ", ErrorText(errno)));
  }
  if (child == 0) {
    BeChild(parent, write_end.get(), act);
  }
  ::setpgid(child, child);  // Whoever is first.
  write_end.reset();
  std::string text;
  const MonoTime deadline = MonoNow() + patience;
  const ReadEnd end = ReadUntil(read_end.get(), deadline, &text);
  int status = 0;
  // A child that has said all may still hang at its end.
  if (end != ReadEnd::kEnd || !EndsBy(child, deadline, &status)) {
    Kill(child);
    return end == ReadEnd::kTooMuch ? absl::UnavailableError("it says too much")
                                    : absl::DeadlineExceededError(absl::StrCat(
                                          "no answer within ", ToSeconds(patience), " s"));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::UnavailableError(WIFSIGNALED(status)
                                      ? absl::StrCat("it ended by signal ", WTERMSIG(status))
                                      : absl::StrCat("it ended with ", WEXITSTATUS(status)));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> RunProbe(const std::function<std::string()>& look, Duration patience) {
  return Ask(
      [&look](int fd) {
        if (WriteAll(fd, look()) != 0) {
          ::_exit(1);
        }
      },
      patience);
}

absl::StatusOr<std::string> AskProgram(const std::vector<std::string>& words,
                                       const Environment& environment, Duration patience) {
  const std::vector<std::string> variables = ExecVariables(environment);
  const auto arguments = ExecPointers(words);
  const auto pointers = ExecPointers(variables);
  return Ask(
      [&](int fd) {
        const int null = ::open("/dev/null", O_RDWR);
        ::dup2(null, STDIN_FILENO);
        ::dup2(fd, STDOUT_FILENO);
        ::dup2(null, STDERR_FILENO);
        ::execve(words.front().c_str(), arguments.data(), pointers.data());
        ::_exit(127);
      },
      patience);
}

}  // namespace fsdprun::doctor
