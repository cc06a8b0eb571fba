#include "launcher/daemon/daemon_session.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

namespace fsdprun {
namespace {

constexpr uint64_t kDropBytes = 1u << 20;
/// A multiple of what file systems give back as a whole, so that no zeros are left.
constexpr uint64_t kDropUnit = 64u << 10;
/// Between two attempts to open what cannot be opened.
constexpr Duration kReopenPause = std::chrono::seconds(1);
constexpr int kSignalBase = 128;
constexpr const char* kNames[] = {"/stdout", "/stderr"};

/// Where a file begins of which an earlier daemon has given the beginning back.
uint64_t DroppedOf(int file) {
  struct stat info {};
  if (::fstat(file, &info) != 0 || info.st_size == 0) {
    return 0;
  }
  const off_t data = ::lseek(file, 0, SEEK_DATA);
  return data >= 0        ? static_cast<uint64_t>(data)
         : errno == ENXIO ? static_cast<uint64_t>(info.st_size)
                          : 0;
}

}  // namespace

DaemonSession::DaemonSession(EventLoop& loop, FileGrowth& growth, std::string folder,
                             SessionProcess process, Output output, Hooks hooks)
    : loop_(loop),
      growth_(growth),
      folder_(std::move(folder)),
      output_(output),
      hooks_(std::move(hooks)),
      process_(std::move(process)) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    OpenStream(i);
    watches_[i] = growth_.Watch(folder_ + kNames[i], [this] { OnGrowth(); });
  }
  watches_[2] = growth_.Watch(folder_ + "/alive", [this] { hooks_.on_more(); });
  if (is_running()) {
    WatchProcess();
  }
}

DaemonSession::~DaemonSession() {
  loop_.Cancel(retry_timer_);
  for (const int watch : watches_) {
    growth_.Unwatch(watch);
  }
  if (is_running()) {
    loop_.Unwatch(process_.pidfd.get());
  }
}

// Output that cannot be read for want of a descriptor is not lost: it is read later.
void DaemonSession::OpenStream(size_t index) {
  Stream& stream = streams_[index];
  stream.file =
      UniqueFd(::open((folder_ + kNames[index]).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (stream.file.valid()) {
    stream.is_unread = false;
    stream.dropped = DroppedOf(stream.file.get());
    stream.sent = std::max(stream.sent, stream.dropped);
    stream.shown = std::max(stream.shown, stream.dropped);
    return;
  }
  stream.is_unread = errno != ENOENT;
  if (stream.is_unread && retry_timer_ == 0) {
    retry_timer_ = loop_.At(MonoNow() + kReopenPause, [this] {
      retry_timer_ = 0;
      for (size_t i = 0; i < streams_.size(); ++i) {
        if (streams_[i].is_unread) {
          OpenStream(i);
        }
      }
      hooks_.on_more();
    });
  }
}

void DaemonSession::Signal(int signal) {
  if (is_running()) {
    ::syscall(SYS_pidfd_send_signal, process_.pidfd.get(), signal, nullptr, 0);
  }
}

void DaemonSession::WatchProcess() {
  loop_.Watch(process_.pidfd.get(), EPOLLIN, [this](uint32_t) { OnProcess(); });
}

void DaemonSession::GoOn(SessionProcess process) {
  process_ = std::move(process);
  WatchProcess();
}

void DaemonSession::OnProcess() {
  if (process_.is_child && ::waitpid(process_.pid, &wait_status_, WNOHANG) == 0) {
    return;
  }
  loop_.Unwatch(process_.pidfd.get());
  process_.pidfd.reset();
  hooks_.on_end();
}

// One that could not write it was killed; how, only its parent knows.
int DaemonSession::ExitCode() const {
  if (const std::optional<int> told = ReadSessionExit(folder_)) {
    return *told;
  }
  if (process_.is_child && WIFEXITED(wait_status_)) {
    return WEXITSTATUS(wait_status_);
  }
  return kSignalBase +
         (process_.is_child && WIFSIGNALED(wait_status_) ? WTERMSIG(wait_status_) : SIGKILL);
}

void DaemonSession::Follow(uint64_t stdout_shown, uint64_t stderr_shown) {
  is_start_sent_ = is_end_sent_ = false;
  const uint64_t shown[] = {stdout_shown, stderr_shown};
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    stream.shown = stream.sent = std::max(shown[i], stream.dropped);
  }
}

void DaemonSession::Shown(uint64_t stdout_shown, uint64_t stderr_shown) {
  const uint64_t shown[] = {stdout_shown, stderr_shown};
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    stream.shown = std::clamp(shown[i], stream.shown, stream.sent);
    if (output_ == Output::kDropped) {
      Drop(stream, stream.shown);
    }
  }
  hooks_.on_more();
}

void DaemonSession::OnGrowth() {
  for (Stream& stream : streams_) {
    struct stat info {};
    if (output_ == Output::kKept && ::fstat(stream.file.get(), &info) == 0 &&
        static_cast<uint64_t>(info.st_size) > kKeptBytes) {
      Drop(stream, static_cast<uint64_t>(info.st_size) - kKeptBytes);
      stream.sent = std::max(stream.sent, stream.dropped);
      stream.shown = std::max(stream.shown, stream.dropped);
    }
  }
  hooks_.on_more();
}

void DaemonSession::Drop(Stream& stream, uint64_t end) {
  end -= end % kDropUnit;
  if (end >= stream.dropped + kDropBytes &&
      ::fallocate(stream.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(stream.dropped),
                  static_cast<off_t>(end - stream.dropped)) == 0) {
    stream.dropped = end;
  }
}

std::string DaemonSession::Read(Stream& stream) {
  const uint64_t room = kWindowBytes - std::min(kWindowBytes, stream.sent - stream.shown);
  std::string piece(std::min<uint64_t>(kPieceBytes, room), '\0');
  const ssize_t n = piece.empty() ? 0
                                  : ::pread(stream.file.get(), piece.data(), piece.size(),
                                            static_cast<off_t>(stream.sent));
  piece.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return piece;
}

std::optional<v1::DaemonMessage> DaemonSession::Take() {
  v1::DaemonMessage message;
  if (output_ == Output::kKept && !is_start_sent_ && HasSessionStarted(folder_)) {
    is_start_sent_ = true;
    message.mutable_started();
    return message;
  }
  bool is_all = true;
  for (size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    std::string piece = Read(stream);
    if (!piece.empty()) {
      message.mutable_output()->set_is_error(i == 1);
      message.mutable_output()->set_offset(stream.sent);
      stream.sent += piece.size();
      message.mutable_output()->set_data(std::move(piece));
      return message;
    }
    is_all = is_all && !stream.is_unread && stream.sent - stream.shown < kWindowBytes;
  }
  if (is_running() || !is_all || std::exchange(is_end_sent_, true)) {
    return std::nullopt;
  }
  message.mutable_ended()->set_code(ExitCode());
  return message;
}

}  // namespace fsdprun
