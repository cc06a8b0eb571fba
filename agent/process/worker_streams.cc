#include "agent/process/worker_streams.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "proto/worker_contract.h"

namespace fsdprun::keeper {
namespace {

/// A burst that fits the pipe does not block the worker. Best effort: the kernel limits pipe memory
/// per user.
constexpr int kPipeBytes = 256 << 10;

}  // namespace

void CloseFd(int& fd) {
  if (fd >= 0) {
    ::close(fd);
    fd = -1;
  }
}

LogStream::~LogStream() { Close(); }

int LogStream::Open(const std::string& path) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return -1;
  }
  // Only our end: O_NONBLOCK would surprise the worker.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  pipe_ = ends[0];
  is_empty_ = false;
  path_ = path;
  file_ =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY, 0644);
  if (file_ < 0) {
    Degrade(errno);
  }
  return ends[1];
}

std::string_view LogStream::ReadOnce(char* buffer, size_t size) {
  const ssize_t got = ::read(pipe_, buffer, size);
  if (got <= 0) {
    if (got < 0 && errno == EINTR) {
      return {};
    }
    is_empty_ = true;
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      CloseFd(pipe_);
    }
    return {};
  }
  is_empty_ = false;
  tail_.Append({buffer, static_cast<size_t>(got)});
  const size_t stored = Store(buffer, static_cast<size_t>(got));
  size_bytes_ += stored;
  growth_pending = growth_pending || stored > 0;
  return {buffer + stored, static_cast<size_t>(got) - stored};
}

size_t LogStream::Store(const char* data, size_t size) {
  size_t stored = 0;
  while (file_ >= 0 && stored < size) {
    const ssize_t n = ::write(file_, data + stored, size - stored);
    if (n > 0) {
      stored += static_cast<size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      Degrade(n == 0 ? ENOSPC : errno);
    }
  }
  return stored;
}

void LogStream::Degrade(int error) {
  CloseFd(file_);
  file_error_ = error;
  degradation_pending = true;
}

void LogStream::Close() {
  CloseFd(pipe_);
  CloseFd(file_);
}

ControlSocket::~ControlSocket() { Close(); }

int ControlSocket::Open() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return -1;
  }
  fd_ = ends[0];
  incoming_.reserve(2 * contract::kMaxRecordBytes);
  return ends[1];
}

void ControlSocket::Receive() {
  incoming_.erase(0, taken_);
  taken_ = 0;
  char buffer[contract::kMaxRecordBytes];
  const ssize_t got = ::recv(fd_, buffer, sizeof(buffer), MSG_DONTWAIT);
  if (got > 0) {
    incoming_.append(buffer, static_cast<size_t>(got));
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    Close();
  }
}

bool ControlSocket::TakeLine(std::string_view& line) {
  for (;;) {
    const size_t end = incoming_.find('\n', taken_);
    if (end == std::string::npos) {
      if (incoming_.size() - taken_ >= contract::kMaxRecordBytes) {
        overflowed_ = overflowed_ || !skips_to_newline_;
        skips_to_newline_ = true;
      }
      if (skips_to_newline_) {
        taken_ = incoming_.size();
      }
      return false;
    }
    line = std::string_view(incoming_).substr(taken_, end - taken_);
    taken_ = end + 1;
    if (skips_to_newline_) {
      skips_to_newline_ = false;  // The end of a line whose beginning was dropped.
    } else if (line.size() >= contract::kMaxRecordBytes) {
      overflowed_ = true;
    } else {
      return true;
    }
  }
}

bool ControlSocket::TakeOverflow() {
  const bool overflowed = overflowed_;
  overflowed_ = false;
  return overflowed;
}

bool ControlSocket::SendLine(std::string_view line) {
  if (fd_ < 0 || !unsent_.empty()) {
    return false;
  }
  unsent_.assign(line);
  unsent_.push_back('\n');
  Flush();
  return true;
}

void ControlSocket::Flush() {
  const ssize_t sent = ::send(fd_, unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) {
    unsent_.erase(0, static_cast<size_t>(sent));
  } else if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    unsent_.clear();  // The worker closed its end; what it wrote before can still be read.
  }
}

void ControlSocket::Close() {
  CloseFd(fd_);
  unsent_.clear();
}

}  // namespace fsdprun::keeper
