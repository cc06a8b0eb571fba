#include "launcher/report/console_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

constexpr Duration kRoomInterval = std::chrono::milliseconds(20);
/// Interrupts a blocked write of the writer thread. Ignored by default and not used otherwise.
constexpr int kInterrupt = SIGURG;
constexpr char kEraseLine[] = "\r\x1b[2K";

// An empty handler without SA_RESTART: the signal only interrupts a blocked system call.
void MakeInterruptible() {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  ::sigaction(kInterrupt, &action, nullptr);
}

// A separate open file description of the terminal behind `fd`; invalid if it is not a terminal or
// may not be opened (after su).
UniqueFd OpenTerminal(int fd) {
  if (::isatty(fd) == 0) {
    return UniqueFd();
  }
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

ConsoleChannel::ConsoleChannel(int fd, const Options& options, Callbacks callbacks)
    : inherited_(fd),
      options_(options),
      terminal_(OpenTerminal(fd)),
      is_terminal_(::isatty(fd) != 0),
      callbacks_(std::move(callbacks)),
      writer_([this] {
        // Another thread would name it through /proc, of whose entries the kernel clears the memory
        // when this process is reaped.
        ::pthread_setname_np(::pthread_self(), "console");
        WriterMain();
      }) {
  MakeInterruptible();
}

ConsoleChannel::~ConsoleChannel() { Close(MonoNow()); }

void ConsoleChannel::Write(std::string lines) {
  MutexLock lock(mu_);
  if (closing_) {
    return;
  }
  queued_bytes_ += lines.size();
  queue_.push_back(std::move(lines));
  changed_.NotifyAll();
}

void ConsoleChannel::SetProgress(std::string text) {
  MutexLock lock(mu_);
  if (text != progress_) {
    progress_ = std::move(text);
    progress_changed_ = true;
    changed_.NotifyAll();
  }
}

bool ConsoleChannel::HasRoom() {
  MutexLock lock(mu_);
  const bool has_room = queued_bytes_ < options_.room_bytes;
  someone_waits_for_room_ |= !has_room;
  return has_room;
}

ConsoleChannel::Progress ConsoleChannel::progress() {
  MutexLock lock(mu_);
  return {.queued = written_bytes_ + queued_bytes_,
          .written = written_bytes_,
          .dropped = dropped_bytes_};
}

bool ConsoleChannel::WaitForRoom(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return queued_bytes_ < options_.room_bytes;
  });
}

bool ConsoleChannel::WaitWritten(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return queued_bytes_ == 0; });
}

void ConsoleChannel::Close(MonoTime deadline) {
  if (!writer_.joinable()) {
    return;
  }
  {
    MutexLock lock(mu_);
    closing_ = true;
    changed_.NotifyAll();
  }
  WaitFinished(deadline);
  gives_up_ = true;
  changed_.NotifyAll();
  // Repeatedly: a signal that arrives just before the write does not interrupt it.
  while (!WaitFinished(MonoNow() + kRoomInterval)) {
    ::pthread_kill(writer_.native_handle(), kInterrupt);
  }
  writer_.join();
}

bool ConsoleChannel::WaitFinished(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return finished_; });
}

void ConsoleChannel::WriterMain() {
  for (;;) {
    std::deque<std::string> batch;
    std::string progress;
    bool redraw = false;
    bool is_last = false;
    bool room_again = false;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
        return !queue_.empty() || progress_changed_ || closing_;
      });
      batch.swap(queue_);
      is_last = closing_;
      progress = progress_;
      redraw = std::exchange(progress_changed_, false) || !batch.empty();
    }
    size_t written = 0;
    for (const std::string& lines : batch) {
      EraseProgress();
      WriteText(lines);
      written += lines.size();
    }
    if (is_last) {
      EraseProgress();
      WriteText("");
    } else if (redraw && !progress.empty()) {
      DrawProgress(progress);
    }
    {
      MutexLock lock(mu_);
      queued_bytes_ -= written;
      written_bytes_ += written;
      changed_.NotifyAll();
      room_again = someone_waits_for_room_ && queued_bytes_ < options_.room_bytes;
      someone_waits_for_room_ &= !room_again;
      if (is_last) {
        finished_ = true;
        changed_.NotifyAll();
        return;
      }
    }
    if (room_again && callbacks_.on_room) {
      callbacks_.on_room();
    }
  }
}

void ConsoleChannel::DrawProgress(const std::string& text) {
  std::string line = kEraseLine;
  absl::StrAppend(&line, text.substr(0, options_.width > 1 ? options_.width - 1 : 0));
  WriteAll(line);
  progress_is_drawn_ = true;
}

void ConsoleChannel::EraseProgress() {
  if (std::exchange(progress_is_drawn_, false)) {
    WriteAll(kEraseLine);
  }
}

// Where there was no room, that is said before what comes next; at the end, before nothing.
void ConsoleChannel::WriteText(absl::string_view lines) {
  if (no_room_error_ != 0 && WriteAll(GapText()) == 0) {
    no_room_error_ = 0;
    missing_bytes_ = 0;
  }
  const size_t left = no_room_error_ != 0 ? lines.size() : WriteAll(lines);
  missing_bytes_ += no_room_error_ != 0 ? left : 0;
  dropped_bytes_ += left;
}

std::string ConsoleChannel::GapText() const {
  return absl::StrCat(ends_line_ ? "" : "\n", "[", missing_bytes_,
                      " bytes of output are missing here: ", ErrorText(no_room_error_), "]\n");
}

// Returns how many bytes could not be written.
//
// The descriptors are shared with other programs, so they are not made non-blocking: poll first,
// then write at most PIPE_BUF bytes, which a writable pipe accepts. A terminal may be writable and
// yet accept less, so it is written to through a separate non-blocking description. Where that may
// not be opened (after su), and where another program fills the pipe in between, the write blocks
// and Close() interrupts it.
size_t ConsoleChannel::WriteAll(absl::string_view data) {
  const int fd = terminal_.valid() ? terminal_.get() : inherited_;
  while (!data.empty() && !is_gone_ && WaitWritable(fd)) {
    const auto chunk = static_cast<ssize_t>(std::min<size_t>(data.size(), PIPE_BUF));
    const ssize_t n = ::write(fd, data.data(), static_cast<size_t>(chunk));
    if (gives_up_ && n < chunk && !terminal_.valid()) {
      is_gone_ = true;  // It blocked, and would block again.
    } else if (n > 0) {
      ends_line_ = data[static_cast<size_t>(n) - 1] == '\n';
      data.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno == EAGAIN) {
      if (gives_up_) {
        break;
      }
      WaitForMoreRoom();
    } else if (errno != EINTR) {
      OnWriteError(errno);
      break;
    }
  }
  return data.size();
}

// Who reads may go at any time, and a terminal may hang up.
void ConsoleChannel::OnWriteError(int error) {
  const bool has_no_room = error == ENOSPC || error == EDQUOT;
  no_room_error_ = has_no_room ? error : 0;
  is_gone_ = !has_no_room;
  const bool has_reader_left =
      error == EPIPE || error == ECONNRESET || (is_terminal_ && error == EIO);
  const bool was_closed = error == EBADF;  // From the start: nothing is wanted.
  if (has_reader_left || was_closed || has_failed_.exchange(true)) {
    return;
  }
  if (callbacks_.on_failure) {
    callbacks_.on_failure(error);
  }
}

// A terminal with room for one byte is writable, but does not accept a newline.
void ConsoleChannel::WaitForMoreRoom() {
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, MonoNow() + kRoomInterval, [this] { return gives_up_.load(); });
}

bool ConsoleChannel::WaitWritable(int fd) {
  // Tries once even after giving up: a blocked standard output must not suppress the report on
  // standard error.
  for (;;) {
    const bool is_last_try = gives_up_;
    pollfd poll_fd{.fd = fd, .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&poll_fd, 1, is_last_try ? 0 : 100);
    if (ready > 0) {
      return true;
    }
    if (is_last_try || (ready < 0 && errno != EINTR)) {
      return false;
    }
  }
}

}  // namespace fsdprun
