#include "fsdpctl/screen/terminal_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace fsdprun::top {
namespace {

/// At once: a terminal that cannot be opened anew, such as that of another user, is asked before
/// each of them whether it takes any.
constexpr size_t kPieceBytes = 256;

/// The same terminal without waiting: the flags of `terminal` are everybody's.
UniqueFd OpenAnew(int terminal) {
  const std::string path = absl::StrCat("/proc/self/fd/", terminal);
  return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

/// As Ctrl-Q does. Nothing else does so where it was Ctrl-S that has stopped it.
void StartOutput(int terminal) {
  termios mode{};
  if (::tcgetattr(terminal, &mode) != 0) {
    return;
  }
  termios unstoppable = mode;
  unstoppable.c_iflag &= ~static_cast<tcflag_t>(IXON);
  ::tcsetattr(terminal, TCSANOW, &unstoppable);
  ::tcsetattr(terminal, TCSANOW, &mode);
}

}  // namespace

TerminalWriter::TerminalWriter(int terminal) : fd_(OpenAnew(terminal)), may_block_(!fd_.valid()) {
  if (may_block_) {
    fd_.reset(::fcntl(terminal, F_DUPFD_CLOEXEC, 0));
  }
}

bool TerminalWriter::CanWrite(int wait_ms) const {
  pollfd terminal{.fd = fd_.get(), .events = POLLOUT};
  return ::poll(&terminal, 1, wait_ms) > 0;
}

void TerminalWriter::Flush() {
  size_t done = 0;
  while (done < unwritten_.size() && CanWrite(0)) {
    const size_t left = unwritten_.size() - done;
    const size_t piece = may_block_ ? std::min(kPieceBytes, left) : left;
    const ssize_t written = ::write(fd_.get(), unwritten_.data() + done, piece);
    if (written < 0 && errno != EINTR) {
      // One that is gone takes nothing any more.
      done = errno == EAGAIN ? done : unwritten_.size();
      break;
    }
    done += static_cast<size_t>(std::max<ssize_t>(0, written));
  }
  unwritten_.erase(0, done);
}

void TerminalWriter::Finish(Duration limit) {
  const MonoTime end = MonoNow() + limit;
  for (Flush(); has_unwritten() && MonoNow() < end; Flush()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - MonoNow());
    CanWrite(static_cast<int>(std::max<int64_t>(1, left.count())));
  }
  if (has_unwritten() || !CanWrite(0)) {
    unwritten_.clear();
    ::tcflush(fd_.get(), TCOFLUSH);
    StartOutput(fd_.get());
  }
}

}  // namespace fsdprun::top
