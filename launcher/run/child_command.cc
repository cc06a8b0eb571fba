#include "launcher/run/child_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/mutex.h"
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
/// Of one that somebody else has waited for: who clears away what a lost keeper has left takes all
/// children of this process.
constexpr int kUnknownCode = 255;

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
  sigaddset(&defaults, SIGXFSZ);
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

/// What lack of means, a file system or somebody's work on the program leads to.
bool MayPass(int error) {
  switch (error) {
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ETXTBSY:
    case EINTR:
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

absl::Status StartError(const std::string& program, int error) {
  if (error == ENOENT) {
    return absl::NotFoundError(absl::StrCat("cannot start ", program, ": no such program",
                                            absl::StrContains(program, '/') ? "" : " on PATH"));
  }
  const std::string text = absl::StrCat("start ", program, ": ", ErrorText(error));
  return MayPass(error) ? absl::UnavailableError(text) : absl::InternalError(text);
}

}  // namespace

/// What its thread and the loop know of a start.
struct ChildCommand::Birth {
  explicit Birth(ChildCommand* o) : owner(o) {}

  /// Loop thread only. Null if nobody waits for it any more.
  ChildCommand* owner;
  Mutex mu;
  /// Whoever was started is to be ended.
  bool is_unwanted ABSL_GUARDED_BY(mu) = false;
  std::optional<absl::StatusOr<Child>> child ABSL_GUARDED_BY(mu);
};

ChildCommand::ChildCommand(EventLoop& loop, Reads reads, Hooks hooks)
    : loop_(loop), reads_(reads), hooks_(std::move(hooks)), gate_(loop) {}

ChildCommand::~ChildCommand() {
  if (birth_ != nullptr) {
    Kill();  // Nobody has seen it yet.
  }
  loop_.Cancel(retry_);
  if (child_.output.valid()) {
    loop_.Unwatch(child_.output.get());
  }
  if (child_.pidfd.valid()) {
    loop_.Unwatch(child_.pidfd.get());
  }
}

void ChildCommand::Start(const std::vector<std::string>& command, const Environment& environment) {
  birth_ = std::make_shared<Birth>(this);
  const LoopGate::Post post = gate_.poster();
  const auto start = [birth = birth_, command, environment, reads = reads_, post] {
    Deliver(birth, StartChild(command, environment, reads), post);
  };
  try {
    std::thread(start).detach();  // It may hang in the kernel, and owns what it uses.
  } catch (const std::system_error& error) {
    Deliver(birth_, StartError(command.front(), error.code().value()), post);
  }
}

absl::StatusOr<ChildCommand::Child> ChildCommand::StartChild(
    const std::vector<std::string>& command, const Environment& environment, Reads reads) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return StartError(command.front(), errno);
  }
  Child child{.output = UniqueFd(ends[0])};
  const UniqueFd write_end(ends[1]);
  if (const int error = Spawn(command, environment, reads, write_end.get(), &child.pid);
      error != 0) {
    return StartError(command.front(), error);
  }
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.pidfd.valid()) {
    const int error = errno;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    return StartError(command.front(), error);
  }
  ::fcntl(child.output.get(), F_SETFL, O_NONBLOCK);
  return child;
}

// Thread: any.
void ChildCommand::Deliver(const std::shared_ptr<Birth>& birth, absl::StatusOr<Child> child,
                           const LoopGate::Post& post) {
  std::optional<absl::StatusOr<Child>> unwanted;
  {
    MutexLock lock(birth->mu);
    (birth->is_unwanted ? unwanted : birth->child) = std::move(child);
  }
  if (!unwanted.has_value()) {
    post([birth] {
      if (birth->owner != nullptr) {
        birth->owner->OnStarted();
      }
    });
  } else if (unwanted->ok()) {
    EndChild(**unwanted, -1);
  }
}

// `is_last`: who is started later is to be ended.
std::optional<absl::StatusOr<ChildCommand::Child>> ChildCommand::TakeChild(Birth& birth,
                                                                           bool is_last) {
  MutexLock lock(birth.mu);
  birth.is_unwanted = is_last;
  return std::exchange(birth.child, std::nullopt);
}

// `wait_ms`: negative without a bound.
void ChildCommand::EndChild(const Child& child, int wait_ms) {
  ::syscall(SYS_pidfd_send_signal, child.pidfd.get(), SIGKILL, nullptr, 0);
  pollfd end{.fd = child.pidfd.get(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, wait_ms);
  ::waitpid(child.pid, nullptr, WNOHANG);
}

void ChildCommand::OnStarted() {
  absl::StatusOr<Child> child = *TakeChild(*birth_, /*is_last=*/false);
  birth_->owner = nullptr;
  birth_.reset();
  if (!child.ok()) {
    hooks_.on_failure(child.status());
    return;
  }
  child_ = *std::move(child);
  loop_.Watch(child_.output.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
  loop_.Watch(child_.pidfd.get(), EPOLLIN, [this](uint32_t) { OnProcessEnd(); });
  if (early_signal_ != 0) {
    Signal(early_signal_);
  }
}

void ChildCommand::Signal(int signal) {
  if (birth_ != nullptr) {
    early_signal_ = signal;
  } else if (is_running()) {
    ::syscall(SYS_pidfd_send_signal, child_.pidfd.get(), signal, nullptr, 0);
  }
}

void ChildCommand::Kill() {
  if (birth_ != nullptr) {
    birth_->owner = nullptr;
    const auto child = TakeChild(*birth_, /*is_last=*/true);
    birth_.reset();
    if (child.has_value() && child->ok()) {
      EndChild(**child, kKillWaitMs);
    }
  }
  loop_.Cancel(retry_);
  if (child_.output.valid()) {
    loop_.Unwatch(child_.output.get());
    child_.output.reset();
  }
  if (is_running()) {
    EndChild(child_, kKillWaitMs);
    loop_.Unwatch(child_.pidfd.get());
    child_.pidfd.reset();
  }
}

void ChildCommand::OnOutput() {
  if (!hooks_.has_room()) {
    loop_.Unwatch(child_.output.get());
    retry_ = loop_.At(MonoNow() + kRetry, [this] {
      loop_.Watch(child_.output.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
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
  const ssize_t n = ::read(child_.output.get(), piece.data(), piece.size());
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
  for (size_t taken = 0; child_.output.valid() && taken < kLargestRest;) {
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
  if (!child_.output.valid()) {
    return;
  }
  loop_.Unwatch(child_.output.get());
  child_.output.reset();
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
  const pid_t ended = ::waitpid(child_.pid, &status, WNOHANG);
  const bool is_reaped = ended < 0 && errno == ECHILD;
  if (ended != child_.pid && !is_reaped) {
    return;
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  loop_.Unwatch(child_.pidfd.get());
  child_.pidfd.reset();
  TakeRest();
  hooks_.on_end(is_reaped ? kUnknownCode : code);
}

}  // namespace fsdprun
