#include "launcher/run/child_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "launcher/run/exec_words.h"

namespace fsdprun {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(50);
/// For a process that was killed: it may wait for a file system that hangs.
constexpr int kKillWaitMs = 100;
constexpr size_t kReadBytes = 65536;
/// A pipe holds less, unless somebody writes on.
constexpr size_t kLargestRest = 1u << 20;
/// A line that is longer is passed on in pieces.
constexpr size_t kLongestLine = 1u << 20;
constexpr int kSignalBase = 128;

// Returns an errno.
int Spawn(const std::vector<std::string>& command, const Environment& environment,
          ChildCommand::Reads reads, int write_end, pid_t* pid) {
  const std::vector<std::string> variables = ExecVariables(environment);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (reads == ChildCommand::Reads::kAll) {
    posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
  }
  posix_spawn_file_actions_adddup2(&actions, write_end, STDERR_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawnp(pid, command.front().c_str(), &actions, &attributes,
                                   ExecPointers(command).data(), ExecPointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

ChildCommand::ChildCommand(EventLoop& loop, Reads reads, Hooks hooks)
    : loop_(loop), reads_(reads), hooks_(std::move(hooks)) {}

ChildCommand::~ChildCommand() {
  loop_.Cancel(retry_);
  if (output_.valid()) {
    loop_.Unwatch(output_.get());
  }
  if (pidfd_.valid()) {
    loop_.Unwatch(pidfd_.get());
  }
}

absl::Status ChildCommand::Start(const std::vector<std::string>& command,
                                 const Environment& environment) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(
        absl::StrCat("pipe for the messages of ", command.front(), ": ", ErrorText(errno)));
  }
  output_ = UniqueFd(ends[0]);
  const UniqueFd write_end(ends[1]);
  const int error = Spawn(command, environment, reads_, write_end.get(), &pid_);
  if (error == ENOENT) {
    const bool is_path = absl::StrContains(command.front(), '/');
    return absl::NotFoundError(absl::StrCat("cannot start ", command.front(), ": no such program",
                                            is_path ? "" : " on PATH"));
  }
  if (error != 0) {
    return absl::InternalError(absl::StrCat("start ", command.front(), ": ", ErrorText(error)));
  }
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {
    const int why = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    return absl::InternalError(absl::StrCat("watch ", command.front(), ": ", ErrorText(why)));
  }
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
  loop_.Watch(pidfd_.get(), EPOLLIN, [this](uint32_t) { OnProcessEnd(); });
  return absl::OkStatus();
}

void ChildCommand::Signal(int signal) {
  if (pidfd_.valid()) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
  }
}

void ChildCommand::Kill() {
  if (!pidfd_.valid()) {
    return;
  }
  Signal(SIGKILL);
  pollfd end{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, kKillWaitMs);
  ::waitpid(pid_, nullptr, WNOHANG);
  loop_.Unwatch(pidfd_.get());
  pidfd_.reset();
}

void ChildCommand::OnOutput() {
  if (!hooks_.has_room()) {
    loop_.Unwatch(output_.get());
    retry_ = loop_.At(MonoNow() + kRetry, [this] {
      loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
    });
    return;
  }
  if (const ssize_t n = ReadPiece(); n == 0) {
    CloseOutput();
  }
}

// Returns 0 at the end, and a negative number if there is nothing now.
ssize_t ChildCommand::ReadPiece() {
  std::string piece(kReadBytes, '\0');
  const ssize_t n = ::read(output_.get(), piece.data(), piece.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return n;
  }
  if (n > 0) {
    text_.append(piece, 0, static_cast<size_t>(n));
    PassLines();
    return n;
  }
  return 0;
}

// What is in the pipe once the process is gone is all that it said: it is taken whether or not the
// reader has room, who may have stopped for good, and nobody else with the other end is waited for.
void ChildCommand::TakeRest() {
  for (size_t taken = 0; output_.valid() && taken < kLargestRest;) {
    const ssize_t n = ReadPiece();
    if (n <= 0) {
      break;
    }
    taken += static_cast<size_t>(n);
  }
  CloseOutput();
}

void ChildCommand::CloseOutput() {
  loop_.Cancel(retry_);
  if (!output_.valid()) {
    return;
  }
  loop_.Unwatch(output_.get());
  output_.reset();
  if (!text_.empty()) {
    hooks_.on_lines(absl::StrCat(std::exchange(text_, ""), "\n"));
  }
}

void ChildCommand::PassLines() {
  const size_t end = text_.size() > kLongestLine ? text_.size() - 1 : text_.rfind('\n');
  if (end != std::string::npos) {
    hooks_.on_lines(absl::string_view(text_).substr(0, end + 1));
    text_.erase(0, end + 1);
  }
}

void ChildCommand::OnProcessEnd() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) {
    return;
  }
  loop_.Unwatch(pidfd_.get());
  pidfd_.reset();
  TakeRest();
  hooks_.on_end(WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status));
}

}  // namespace fsdprun
