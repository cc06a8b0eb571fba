#include "launcher/run/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

/// For a process that was killed: it may wait for a file system that hangs.
constexpr int kKillWaitMs = 100;
constexpr int kSignalBase = 128;
/// Of one that somebody else has waited for: who clears away what a lost keeper has left takes all
/// children of this process.
constexpr int kUnknownCode = 255;

/// The child's ends of its pipes; invalid where it has none.
using Ends = std::array<UniqueFd, 3>;

void AddStreams(posix_spawn_file_actions_t* actions, const ChildProcess::Streams& streams,
                const Ends& ends) {
  for (size_t i = 0; i < streams.size(); ++i) {
    const int fd = static_cast<int>(i);
    switch (streams[i]) {
      case ChildProcess::Stream::kNothing:
        posix_spawn_file_actions_addopen(actions, fd, "/dev/null",
                                         fd == STDIN_FILENO ? O_RDONLY : O_WRONLY, 0);
        break;
      case ChildProcess::Stream::kOfLauncher:
        break;
      case ChildProcess::Stream::kPipe:
        posix_spawn_file_actions_adddup2(actions, ends[i].get(), fd);
        break;
      case ChildProcess::Stream::kPipeOfError:
        posix_spawn_file_actions_adddup2(actions, ends[STDERR_FILENO].get(), fd);
        break;
    }
  }
  posix_spawn_file_actions_addclosefrom_np(actions, STDERR_FILENO + 1);
}

// Returns an errno.
int Spawn(const std::vector<std::string>& command, const Environment& environment,
          const ChildProcess::Streams& streams, const Ends& ends, pid_t* pid) {
  const std::vector<std::string> variables = ExecVariables(environment);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  AddStreams(&actions, streams, ends);
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

// Returns an errno.
int OpenPipes(const ChildProcess::Streams& streams, ChildProcess::Pipes* ours, Ends* its) {
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i] != ChildProcess::Stream::kPipe) {
      continue;
    }
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      return errno;
    }
    const bool is_input = i == STDIN_FILENO;
    (*ours)[i].reset(ends[is_input ? 1 : 0]);
    (*its)[i].reset(ends[is_input ? 0 : 1]);
    ::fcntl((*ours)[i].get(), F_SETFL, O_NONBLOCK);
  }
  return 0;
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
struct ChildProcess::Birth {
  Birth(ChildProcess* o, Reach r) : reach(r), owner(o) {}

  const Reach reach;

  /// Loop thread only. Null if nobody waits for it any more.
  ChildProcess* owner;
  Mutex mu;
  /// Whoever was started is to be ended.
  bool is_unwanted ABSL_GUARDED_BY(mu) = false;
  std::optional<absl::StatusOr<Child>> child ABSL_GUARDED_BY(mu);
};

ChildProcess::ChildProcess(EventLoop& loop, Hooks hooks, Reach reach)
    : loop_(loop), hooks_(std::move(hooks)), reach_(reach), gate_(loop) {}

ChildProcess::~ChildProcess() {
  if (birth_ != nullptr) {
    Kill();  // Nobody has seen it yet.
  }
  if (is_running()) {
    loop_.Unwatch(child_.pidfd.get());
  }
}

void ChildProcess::Start(const std::vector<std::string>& command, const Environment& environment,
                         const Streams& streams) {
  birth_ = std::make_shared<Birth>(this, reach_);
  const LoopGate::Post post = gate_.poster();
  const auto start = [birth = birth_, command, environment, streams, post] {
    Deliver(birth, StartChild(command, environment, streams), post);
  };
  try {
    std::thread(start).detach();  // It may hang in the kernel, and owns what it uses.
  } catch (const std::system_error& error) {
    Deliver(birth_, StartError(command.front(), error.code().value()), post);
  }
}

absl::StatusOr<ChildProcess::Child> ChildProcess::StartChild(
    const std::vector<std::string>& command, const Environment& environment,
    const Streams& streams) {
  Child child;
  Ends ends;
  int error = OpenPipes(streams, &child.pipes, &ends);
  if (error == 0) {
    error = Spawn(command, environment, streams, ends, &child.pid);
  }
  if (error != 0) {
    return StartError(command.front(), error);
  }
  child.pidfd = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.pidfd.valid()) {
    error = errno;
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    return StartError(command.front(), error);
  }
  return child;
}

// Thread: any.
void ChildProcess::Deliver(const std::shared_ptr<Birth>& birth, absl::StatusOr<Child> child,
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
    EndChild(**unwanted, birth->reach, -1);
  }
}

// `is_last`: who is started later is to be ended.
std::optional<absl::StatusOr<ChildProcess::Child>> ChildProcess::TakeChild(Birth& birth,
                                                                           bool is_last) {
  MutexLock lock(birth.mu);
  birth.is_unwanted = is_last;
  return std::exchange(birth.child, std::nullopt);
}

// Nobody has waited for it yet, so the number of its group is not another's.
void ChildProcess::SendTo(const Child& child, Reach reach, int signal) {
  if (reach == Reach::kGroup) {
    ::kill(-child.pid, signal);
  } else {
    ::syscall(SYS_pidfd_send_signal, child.pidfd.get(), signal, nullptr, 0);
  }
}

// `wait_ms`: negative without a bound.
void ChildProcess::EndChild(const Child& child, Reach reach, int wait_ms) {
  SendTo(child, reach, SIGKILL);
  pollfd end{.fd = child.pidfd.get(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, wait_ms);
  ::waitpid(child.pid, nullptr, WNOHANG);
}

void ChildProcess::OnStarted() {
  absl::StatusOr<Child> child = *TakeChild(*birth_, /*is_last=*/false);
  birth_->owner = nullptr;
  birth_.reset();
  if (!child.ok()) {
    hooks_.on_failure(child.status());
    return;
  }
  child_ = *std::move(child);
  loop_.Watch(child_.pidfd.get(), EPOLLIN, [this](uint32_t) { OnEnd(); });
  if (early_signal_ != 0) {
    Signal(early_signal_, early_reach_);
  }
  hooks_.on_start(std::move(child_.pipes));
}

void ChildProcess::Signal(int signal, Reach reach) {
  if (birth_ != nullptr) {
    early_signal_ = signal;
    early_reach_ = reach;
  } else if (is_running()) {
    SendTo(child_, reach, signal);
  }
}

void ChildProcess::Kill() {
  if (birth_ != nullptr) {
    birth_->owner = nullptr;
    const auto child = TakeChild(*birth_, /*is_last=*/true);
    birth_.reset();
    if (child.has_value() && child->ok()) {
      EndChild(**child, reach_, kKillWaitMs);
    }
  }
  if (is_running()) {
    loop_.Unwatch(child_.pidfd.get());
    EndChild(child_, reach_, kKillWaitMs);
    child_.pidfd.reset();
  }
}

void ChildProcess::OnEnd() {
  int status = 0;
  const pid_t ended = ::waitpid(child_.pid, &status, WNOHANG);
  const bool is_reaped = ended < 0 && errno == ECHILD;
  if (ended != child_.pid && !is_reaped) {
    return;
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  loop_.Unwatch(child_.pidfd.get());
  child_.pidfd.reset();
  hooks_.on_end(is_reaped ? kUnknownCode : code);
}

}  // namespace fsdprun
