#include "agent/process/log_writer.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "agent/process/process_scan.h"
#include "agent/process/worker_streams.h"

namespace fsdprun::keeper {
namespace {

bool IsTransient(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/// True once the process is gone, also if it was none.
bool Reap(const LogWriter::Abandoned& process) {
  // __WALL: a child without an exit signal is not waited for otherwise.
  const pid_t reaped = ::waitpid(process.pid, nullptr, WNOHANG | __WALL);
  const bool is_gone = reaped == process.pid || (reaped < 0 && errno == ECHILD);
  if (is_gone && process.pidfd >= 0) {
    ::close(process.pidfd);
  }
  return is_gone;
}

}  // namespace

LogWriter::~LogWriter() {
  Abandon();
  for (const Abandoned& process : abandoned_) {
    pollfd ended{.fd = process.pidfd, .events = POLLIN, .revents = 0};
    ::poll(&ended, process.pidfd >= 0 ? 1 : 0, kEndLimitMs);
  }
  ReapAbandoned();
  for (Abandoned& process : abandoned_) {
    CloseFd(process.pidfd);
  }
}

int LogWriter::Start() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno;
  }
  const pid_t keeper = ::getpid();
  const long pid = ::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, nullptr);
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) {
      ::_exit(0);
    }
    ServeLogRequests(ends[1]);
  }
  const int error = errno;
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return error;
  }
  socket_ = ends[0];
  pid_ = static_cast<pid_t>(pid);
  return 0;
}

uint64_t LogWriter::Open(const std::string& path) {
  // Too long a path is cut to one that is still too long.
  queue_.Add({.file = next_file_, .op = LogOp::kOpen},
             std::string_view(path).substr(0, kMaxWriteBytes));
  return next_file_++;
}

void LogWriter::Write(uint64_t file, std::string_view bytes) {
  queue_.Add({.file = file, .op = LogOp::kWrite}, bytes);
}

void LogWriter::Close(uint64_t file) {
  if (is_running()) {
    queue_.Add({.file = file, .op = LogOp::kClose}, {});
  }
}

void LogWriter::Flush() {
  while (wants_to_send()) {
    const std::string_view packet = queue_.NextUnsent();
    if (::send(socket_, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      return;  // Full, or dead: then it is read as end of file.
    }
    queue_.MarkSent();
  }
}

bool LogWriter::PeekAnswer(Answer& answer) {
  if (!is_running()) {
    return false;
  }
  LogAnswer packet;
  const ssize_t got = ::recv(socket_, &packet, sizeof(packet), MSG_DONTWAIT);
  if (got < 0 && IsTransient(errno)) {
    return false;
  }
  const bool is_answer = got == static_cast<ssize_t>(sizeof(packet)) && PeekUnanswered(answer) &&
                         answer.file == packet.file && packet.written <= answer.rest.size();
  if (!is_answer) {
    Abandon();
    return false;
  }
  answer.written = packet.written;
  answer.error = packet.error;
  answer.rest.remove_prefix(packet.written);
  return true;
}

bool LogWriter::PeekUnanswered(Answer& answer) const {
  if (queue_.is_empty()) {
    return false;
  }
  const LogQueue::Entry entry = queue_.Front();
  answer = {.op = entry.request.op, .file = entry.request.file};
  if (entry.request.op == LogOp::kWrite) {
    answer.rest = entry.payload;
  }
  return true;
}

bool LogWriter::IsHung(int64_t now_ns) {
  if (now_ns < queue_.DeadlineNs()) {
    return false;
  }
  ProcessInfo info;
  if (ReadProcess(pid_, info) && info.state == 'R') {
    queue_.Extend(now_ns);
    return false;
  }
  return true;
}

void LogWriter::Abandon() {
  CloseFd(socket_);
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    // At the end of file it may not have ended yet; without a pidfd it is reaped at a later event.
    abandoned_.push_back({pid_, static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))});
    pid_ = -1;
    ReapAbandoned();
  }
}

bool LogWriter::Owns(pid_t pid) const {
  return pid == pid_ || std::any_of(abandoned_.begin(), abandoned_.end(),
                                    [pid](const Abandoned& process) { return process.pid == pid; });
}

void LogWriter::ReapAbandoned() {
  abandoned_.erase(std::remove_if(abandoned_.begin(), abandoned_.end(), Reap), abandoned_.end());
}

}  // namespace fsdprun::keeper
