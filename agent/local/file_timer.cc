#include "agent/local/file_timer.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"

namespace fsdprun {
namespace {

/// With the newline: FileTimerClient counts without it.
constexpr size_t kMaxRequestBytes = PIPE_BUF + 1;
/// Clients do not wait for room: they fail if this process is stopped for so many requests.
constexpr int kPipeBytes = 1 << 20;
/// A timer of the loop may come so late on a machine that is merely busy.
constexpr Duration kTimerStallTolerance = std::chrono::seconds(1);

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

absl::Status CannotMake(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot make the watchdog's FIFO ", path, ": ", why,
                   "; set TORCHELASTIC_TIMER_FILE to another path, or unset it"));
}

bool HasReader(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)).valid();
}

/// What a launcher that was killed, or mktemp, has left there.
absl::Status RemoveOld(const std::string& path) {
  struct stat old {};
  if (::lstat(path.c_str(), &old) != 0) {
    return absl::OkStatus();
  }
  if (S_ISFIFO(old.st_mode) && HasReader(path)) {
    return absl::AlreadyExistsError(path);
  }
  if (!S_ISFIFO(old.st_mode) && !(S_ISREG(old.st_mode) && old.st_size == 0)) {
    return CannotMake(path, "something else has this name");
  }
  return ::unlink(path.c_str()) == 0 ? absl::OkStatus() : CannotMake(path, ErrorText(errno));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileTimer>> FileTimer::Open(EventLoop& loop,
                                                           const std::string& path) {
  if (absl::Status status = RemoveOld(path); !status.ok()) {
    return status;
  }
  if (::mkfifo(path.c_str(), 0600) != 0) {
    return CannotMake(path, ErrorText(errno));
  }
  UniqueFd fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!fifo.valid()) {
    const int error = errno;
    ::unlink(path.c_str());
    return CannotMake(path, ErrorText(error));
  }
  ::fcntl(fifo.get(), F_SETPIPE_SZ, kPipeBytes);
  return std::unique_ptr<FileTimer>(new FileTimer(loop, path, std::move(fifo)));
}

absl::StatusOr<std::unique_ptr<FileTimer>> FileTimer::Adopt(EventLoop& loop,
                                                            const std::string& path) {
  UniqueFd fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  struct stat info {};
  if (!fifo.valid() || ::fstat(fifo.get(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("the watchdog's FIFO ", path, ": ", ErrorText(errno)));
  }
  if (!S_ISFIFO(info.st_mode) || info.st_uid != ::geteuid()) {
    return absl::NotFoundError(absl::StrCat(path, " is not the watchdog's FIFO any more"));
  }
  return std::unique_ptr<FileTimer>(new FileTimer(loop, path, std::move(fifo)));
}

FileTimer::FileTimer(EventLoop& loop, std::string path, UniqueFd fifo)
    : loop_(loop), path_(std::move(path)), fifo_(std::move(fifo)) {
  loop_.Watch(fifo_.get(), EPOLLIN, [this](uint32_t) {
    Read();
    Schedule();
  });
}

FileTimer::~FileTimer() {
  loop_.Cancel(wake_timer_);
  loop_.Unwatch(fifo_.get());
  struct stat mine {
  }, named{};
  if (::fstat(fifo_.get(), &mine) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
      mine.st_dev == named.st_dev && mine.st_ino == named.st_ino) {
    ::unlink(path_.c_str());
  }
}

void FileTimer::Clear() {
  Read();
  timers_.Clear();
  Schedule();
}

void FileTimer::Drop(int32_t pid) {
  timers_.Drop(pid);
  Schedule();
}

void FileTimer::Read() {
  char bytes[16 << 10];
  for (int taken = 0; taken < 2 * kPipeBytes;) {  // Who writes without end must not stop the loop.
    const ssize_t got = ::read(fifo_.get(), bytes, sizeof(bytes));
    if (got <= 0) {
      return;
    }
    taken += static_cast<int>(got);
    incoming_.append(bytes, static_cast<size_t>(got));
    TakeLines();
  }
}

void FileTimer::TakeLines() {
  size_t begin = 0;
  for (size_t end = 0; (end = incoming_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    if (!std::exchange(is_skipping_line_, false)) {
      Take(absl::string_view(incoming_).substr(begin, end - begin));
    }
  }
  incoming_.erase(0, begin);
  if (incoming_.size() > kMaxRequestBytes) {
    Warn(absl::StrCat("a line is longer than ", PIPE_BUF, " bytes"));
    incoming_.clear();
    is_skipping_line_ = true;
  }
}

void FileTimer::Take(absl::string_view line) {
  const auto request = ParseTimerRequest({line.data(), line.size()});
  if (!request.has_value()) {
    Warn(absl::StrCat("a line is no request of a FileTimerClient: ",
                      absl::CHexEscape(line.substr(0, 80))));
    return;
  }
  if (callbacks_.on_request) {
    callbacks_.on_request();
  }
  if (request->IsRelease()) {
    timers_.Release(request->pid, request->scope);
    return;
  }
  ProcessInfo process;
  if (!ReadProcess(request->pid, process) || process.IsDead()) {
    return;  // There is nobody left to be late.
  }
  if (!timers_.Acquire(*request, process, UnixSeconds(), MonoNow())) {
    Warn(absl::StrCat("more than ", TimerTable::kMaxTimers, " timers are set"));
  }
}

void FileTimer::Warn(absl::string_view what) {
  Log(std::exchange(has_warned_, true) ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("watchdog at ", path_, ": ", what, "; it is ignored (warned once)"));
}

void FileTimer::Schedule() {
  if (timers_.next() == wake_at_) {
    return;
  }
  loop_.Cancel(wake_timer_);
  wake_at_ = timers_.next();
  if (wake_at_ != MonoTime::max()) {
    wake_timer_ = loop_.At(wake_at_, [this] { OnDeadline(); });
  }
}

/// Releases may lie unread if this process was stopped, or the machine is busy.
void FileTimer::OnDeadline() {
  const MonoTime due = std::exchange(wake_at_, MonoTime::max());
  Read();
  const MonoTime now = MonoNow();
  const Duration late = now - due;
  for (const ExpiredTimer& timer :
       timers_.TakeExpired(now, late > kTimerStallTolerance ? late : Duration::zero())) {
    if (callbacks_.on_expired) {
      callbacks_.on_expired(timer);
    }
  }
  Schedule();
}

}  // namespace fsdprun
