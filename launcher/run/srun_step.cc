#include "launcher/run/srun_step.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(50);
constexpr size_t kReadBytes = 65536;
/// A line that is longer is passed on in pieces.
constexpr size_t kLongestLine = 1u << 20;
constexpr int kSignalBase = 128;

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Returns an errno.
int Spawn(const std::vector<std::string>& command, const Environment& environment, int stderr_fd,
          pid_t* pid) {
  std::vector<std::string> variables;
  variables.reserve(environment.size());
  for (const auto& [name, value] : environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, stderr_fd, STDERR_FILENO);
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
                                   Pointers(command).data(), Pointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

}  // namespace

SrunStep::SrunStep(EventLoop& loop, Hooks hooks) : loop_(loop), hooks_(std::move(hooks)) {}

SrunStep::~SrunStep() {
  loop_.Cancel(retry_);
  if (output_.valid()) {
    loop_.Unwatch(output_.get());
  }
  if (pidfd_.valid()) {
    loop_.Unwatch(pidfd_.get());
  }
}

absl::Status SrunStep::Start(const std::vector<std::string>& command,
                             const Environment& environment) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::InternalError(absl::StrCat("pipe for srun's messages: ", ErrorText(errno)));
  }
  output_ = UniqueFd(ends[0]);
  const UniqueFd write_end(ends[1]);
  const int error = Spawn(command, environment, write_end.get(), &pid_);
  if (error == ENOENT) {
    return absl::NotFoundError(absl::StrCat(
        "cannot start ", command.front(),
        ": no such program on PATH. In a job of Slurm this fsdprun starts its agents "
        "with it; put Slurm's programs on PATH, or start one fsdprun on each node with "
        "--rdzv-endpoint"));
  }
  if (error != 0) {
    return absl::InternalError(absl::StrCat("start ", command.front(), ": ", ErrorText(error)));
  }
  pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {
    return absl::InternalError(absl::StrCat("watch ", command.front(), ": ", ErrorText(errno)));
  }
  ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
  loop_.Watch(pidfd_.get(), EPOLLIN, [this](uint32_t) { OnProcessEnd(); });
  return absl::OkStatus();
}

void SrunStep::Signal(int signal) {
  if (pidfd_.valid()) {
    ::syscall(SYS_pidfd_send_signal, pidfd_.get(), signal, nullptr, 0);
  }
}

void SrunStep::OnOutput() {
  if (!hooks_.has_room()) {
    loop_.Unwatch(output_.get());
    retry_ = loop_.At(MonoNow() + kRetry, [this] {
      loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
    });
    return;
  }
  std::string piece(kReadBytes, '\0');
  const ssize_t n = ::read(output_.get(), piece.data(), piece.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (n > 0) {
    text_.append(piece, 0, static_cast<size_t>(n));
    PassLines();
    return;
  }
  loop_.Unwatch(output_.get());
  output_.reset();
  if (!text_.empty()) {
    hooks_.on_lines(absl::StrCat(std::exchange(text_, ""), "\n"));
  }
  EndWhenDone();
}

void SrunStep::PassLines() {
  const size_t end = text_.size() > kLongestLine ? text_.size() - 1 : text_.rfind('\n');
  if (end != std::string::npos) {
    hooks_.on_lines(absl::string_view(text_).substr(0, end + 1));
    text_.erase(0, end + 1);
  }
}

void SrunStep::OnProcessEnd() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) {
    return;
  }
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  loop_.Unwatch(pidfd_.get());
  pidfd_.reset();
  EndWhenDone();
}

void SrunStep::EndWhenDone() {
  if (!pidfd_.valid() && !output_.valid()) {
    hooks_.on_end(code_);
  }
}

}  // namespace fsdprun
