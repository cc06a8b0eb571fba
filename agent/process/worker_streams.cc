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

int LogStream::MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return -1;
  }
  // Only our end: O_NONBLOCK would surprise the worker.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[0], F_SETPIPE_SZ, kPipeBytes);
  pipe_ = ends[0];
  is_empty_ = false;
  return ends[1];
}

void LogStream::BeginFile(uint64_t file) {
  file_ = file;
  is_opening_ = true;
  ++unanswered_;
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
  return {buffer, static_cast<size_t>(got)};
}

void LogStream::OnAnswer(uint64_t written_bytes) {
  --unanswered_;
  is_opening_ = false;  // The first answer is that to BeginFile().
  size_bytes_ += written_bytes;
  growth_pending = growth_pending || written_bytes > 0;
}

void LogStream::Degrade(int error, const std::string& why) {
  if (degradation_.empty()) {
    file_error_ = error;
    degradation_ = why;
  }
}

void LogStream::Close() { CloseFd(pipe_); }

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
