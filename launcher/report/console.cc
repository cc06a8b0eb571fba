#include "launcher/report/console.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

constexpr Duration kRoomInterval = std::chrono::milliseconds(20);
/// Interrupts a blocked write of the writer thread. Ignored by default and not used otherwise.
constexpr int kInterrupt = SIGURG;
constexpr char kEraseLine[] = "\r\x1b[2K";

std::atomic<Console*> log_console{nullptr};

void WriteLogLine(LogLevel /*level*/, absl::string_view line) {
  if (Console* console = log_console.load()) {
    console->WriteLines(ConsoleStream::kError, line);
  }
}

void WriteLogLineToStderr(LogLevel /*level*/, absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
}

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

Console::Console(const Options& options, std::function<void()> on_room)
    : options_(options),
      out_terminal_(OpenTerminal(options.out_fd)),
      error_terminal_(OpenTerminal(options.error_fd)),
      on_room_(std::move(on_room)),
      writer_([this] { WriterMain(); }) {
  MakeInterruptible();
  ::pthread_setname_np(writer_.native_handle(), "console");
}

Console::~Console() { Close(MonoNow()); }

void Console::WriteLines(ConsoleStream stream, absl::string_view text) {
  if (text.empty()) {
    return;
  }
  Item item{stream, std::string(text)};
  if (item.text.back() != '\n' && item.text.back() != '\r') {
    item.text.push_back('\n');
  }
  MutexLock lock(mu_);
  if (closing_) {
    return;
  }
  queued_bytes_ += item.text.size();
  queue_.push_back(std::move(item));
  changed_.NotifyAll();
}

void Console::SetProgress(std::string text) {
  if (!options_.draws_progress) {
    return;
  }
  MutexLock lock(mu_);
  if (text != progress_) {
    progress_ = std::move(text);
    progress_changed_ = true;
    changed_.NotifyAll();
  }
}

bool Console::HasRoom() {
  MutexLock lock(mu_);
  const bool has_room = queued_bytes_ < options_.room_bytes;
  someone_waits_for_room_ |= !has_room;
  return has_room;
}

bool Console::WaitForRoom(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return queued_bytes_ < options_.room_bytes;
  });
}

bool Console::WaitWritten(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return queued_bytes_ == 0; });
}

void Console::Close(MonoTime deadline) {
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

bool Console::WaitFinished(MonoTime deadline) {
  MutexLock lock(mu_);
  return changed_.WaitUntil(mu_, deadline,
                            [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return finished_; });
}

void Console::WriterMain() {
  for (;;) {
    std::deque<Item> batch;
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
    for (const Item& item : batch) {
      Emit(item);
      written += item.text.size();
    }
    if (is_last) {
      EraseProgress();
    } else if (redraw && options_.draws_progress && !progress.empty()) {
      DrawProgress(progress);
    }
    {
      MutexLock lock(mu_);
      queued_bytes_ -= written;
      changed_.NotifyAll();
      room_again = someone_waits_for_room_ && queued_bytes_ < options_.room_bytes;
      someone_waits_for_room_ &= !room_again;
      if (is_last) {
        finished_ = true;
        changed_.NotifyAll();
        return;
      }
    }
    if (room_again && on_room_) {
      on_room_();
    }
  }
}

void Console::Emit(const Item& item) {
  EraseProgress();
  WriteAll(item.stream, item.text);
}

void Console::DrawProgress(const std::string& text) {
  std::string line = kEraseLine;
  absl::StrAppend(&line, text.substr(0, options_.width > 1 ? options_.width - 1 : 0));
  WriteAll(ConsoleStream::kError, line);
  progress_is_drawn_ = true;
}

void Console::EraseProgress() {
  if (std::exchange(progress_is_drawn_, false)) {
    WriteAll(ConsoleStream::kError, kEraseLine);
  }
}

// The descriptors are shared with other programs, so they are not made non-blocking: poll first,
// then write at most PIPE_BUF bytes, which a writable pipe accepts. A terminal may be writable and
// yet accept less, so it is written to through a separate non-blocking description. Where that may
// not be opened (after su), and where another program fills the pipe in between, the write blocks
// and Close() interrupts it.
void Console::WriteAll(ConsoleStream stream, absl::string_view data) {
  const bool is_out = stream == ConsoleStream::kOut;
  const UniqueFd& terminal = is_out ? out_terminal_ : error_terminal_;
  const int inherited = is_out ? options_.out_fd : options_.error_fd;
  const int fd = terminal.valid() ? terminal.get() : inherited;
  bool& is_gone = is_out ? out_is_gone_ : error_is_gone_;
  while (!data.empty() && !is_gone && WaitWritable(fd)) {
    const auto chunk = static_cast<ssize_t>(std::min<size_t>(data.size(), PIPE_BUF));
    const ssize_t n = ::write(fd, data.data(), static_cast<size_t>(chunk));
    if (gives_up_ && n < chunk && !terminal.valid()) {
      is_gone = true;  // It blocked, and would block again.
    } else if (n > 0) {
      data.remove_prefix(static_cast<size_t>(n));
    } else if (n == 0 || errno == EAGAIN) {
      if (gives_up_) {
        return;
      }
      WaitForMoreRoom();
    } else if (errno != EINTR) {
      is_gone = true;
    }
  }
}

// A terminal with room for one byte is writable, but does not accept a newline.
void Console::WaitForMoreRoom() {
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, MonoNow() + kRoomInterval, [this] { return gives_up_.load(); });
}

bool Console::WaitWritable(int fd) {
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

Console::Options OptionsForProcess(const char* term, const char* columns) {
  Console::Options options;
  options.draws_progress =
      ::isatty(STDERR_FILENO) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
  winsize size{};
  int number = 0;
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.width = size.ws_col;
  } else if (columns != nullptr && absl::SimpleAtoi(columns, &number) && number > 0) {
    options.width = static_cast<size_t>(number);
  }
  return options;
}

void RouteLogTo(Console* console) {
  log_console = console;
  SetLogSink(console != nullptr ? WriteLogLine : WriteLogLineToStderr);
}

}  // namespace fsdprun
