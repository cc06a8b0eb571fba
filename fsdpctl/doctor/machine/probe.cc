#include "fsdpctl/doctor/machine/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
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
#include "launcher/run/exec_words.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kMostBytes = size_t{1} << 20;
constexpr size_t kPieceBytes = 4096;

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

/// A child that has said all may still hang at its end.
void EndBy(pid_t child, MonoTime deadline) {
  const UniqueFd ended(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd polled{.fd = ended.get(), .events = POLLIN, .revents = 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()).count();
  if (ended.valid() && ::poll(&polled, 1, static_cast<int>(std::max<int64_t>(left, 0))) == 0) {
    ::kill(child, SIGKILL);
  }
}

/// Does not return.
void BeChild(int write_end, const std::function<void(int)>& act) {
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
  const pid_t child = ::fork();
  if (child < 0) {
    return absl::UnavailableError(absl::StrCat("start a process: ", ErrorText(errno)));
  }
  if (child == 0) {
    BeChild(write_end.get(), act);
  }
  write_end.reset();
  std::string text;
  const MonoTime deadline = MonoNow() + patience;
  const ReadEnd end = ReadUntil(read_end.get(), deadline, &text);
  if (end != ReadEnd::kEnd) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, WNOHANG);
    return end == ReadEnd::kLate ? absl::DeadlineExceededError(
                                       absl::StrCat("no answer within ", ToSeconds(patience), " s"))
                                 : absl::UnavailableError("it says too much");
  }
  EndBy(child, deadline);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
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
        const std::string text = look();
        for (size_t done = 0; done < text.size();) {
          const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
          if (n <= 0) {
            ::_exit(1);
          }
          done += static_cast<size_t>(n);
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
