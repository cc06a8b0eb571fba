#include "launcher/run/ssh_connection.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "launcher/run/exec_words.h"
#include "launcher/ssh/node_hello.h"

namespace fsdprun {
namespace {

constexpr size_t kReadBytes = 65536;
/// A pipe holds less, unless somebody writes on.
constexpr size_t kLargestRest = 1u << 20;
/// A line that is longer is passed on in pieces.
constexpr size_t kLongestLine = 1u << 20;
constexpr size_t kLastWords = 4096;
constexpr int kKillWaitMs = 100;
constexpr int kSignalBase = 128;
/// Of one that somebody else has waited for.
constexpr int kUnknownCode = 255;

constexpr std::array<ConsoleStream, 2> kStreams{ConsoleStream::kOut, ConsoleStream::kError};

// Returns an errno.
int SpawnSsh(const std::vector<std::string>& command, const Environment& environment,
             const std::array<int, 3>& ends, pid_t* pid) {
  const std::vector<std::string> variables = ExecVariables(environment);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  for (size_t i = 0; i < ends.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, ends[i], static_cast<int>(i));
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  sigset_t none;
  sigemptyset(&none);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
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

absl::Status CannotStart(const std::string& program, int error) {
  return error == ENOENT
             ? absl::NotFoundError(absl::StrCat("cannot start ", program,
                                                ": no such program here; install an ssh client, or "
                                                "give its path with --ssh-command"))
             : absl::InternalError(absl::StrCat("cannot start ", program, ": ", ErrorText(error)));
}

}  // namespace

/// Ours and ssh's ends of its standard streams.
struct SshConnection::Pipes {
  std::array<UniqueFd, 3> ours;
  std::array<UniqueFd, 3> its;

  // Returns an errno.
  int Open() {
    for (size_t i = 0; i < ours.size(); ++i) {
      std::array<int, 2> ends{-1, -1};
      if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
        return errno;
      }
      const bool is_input = i == STDIN_FILENO;
      ours[i].reset(ends[is_input ? 1 : 0]);
      its[i].reset(ends[is_input ? 0 : 1]);
      ::fcntl(ours[i].get(), F_SETFL, O_NONBLOCK);
    }
    return 0;
  }
};

SshConnection::SshConnection(EventLoop& loop, Hooks hooks)
    : loop_(loop), hooks_(std::move(hooks)) {}

SshConnection::~SshConnection() { Kill(); }

absl::Status SshConnection::Start(const std::vector<std::string>& command,
                                  const Environment& environment) {
  Pipes pipes;
  int error = pipes.Open();
  if (error == 0) {
    error = SpawnSsh(command, environment,
                     {pipes.its[0].get(), pipes.its[1].get(), pipes.its[2].get()}, &pid_);
  }
  if (error != 0) {
    return CannotStart(command.front(), error);
  }
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_.valid()) {
    error = errno;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    return CannotStart(command.front(), error);
  }
  input_ = std::move(pipes.ours[0]);
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].fd = std::move(pipes.ours[i + 1]);
    loop_.Watch(streams_[i].fd.get(), EPOLLIN, [this, i](uint32_t) { OnReadable(i); });
  }
  loop_.Watch(pidfd_.get(), EPOLLIN, [this](uint32_t) { OnProcessEnd(); });
  return absl::OkStatus();
}

void SshConnection::Send(std::string text) {
  unsent_ = std::move(text);
  OnWritable();
}

void SshConnection::OnWritable() {
  while (input_.valid() && !unsent_.empty()) {
    const ssize_t n = ::write(input_.get(), unsent_.data(), unsent_.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno == EAGAIN) {
      if (!std::exchange(is_writing_, true)) {
        loop_.Watch(input_.get(), EPOLLOUT, [this](uint32_t) { OnWritable(); });
      }
      return;
    }
    if (n < 0) {  // ssh is ending, and says why.
      HangUp();
      return;
    }
    unsent_.erase(0, static_cast<size_t>(n));
  }
  if (std::exchange(is_writing_, false)) {
    loop_.Unwatch(input_.get());
  }
}

void SshConnection::HangUp() {
  if (std::exchange(is_writing_, false)) {
    loop_.Unwatch(input_.get());
  }
  unsent_.clear();
  input_.reset();
}

void SshConnection::Kill() {
  HangUp();
  for (size_t i = 0; i < streams_.size(); ++i) {
    CloseStream(i);
  }
  if (!is_open()) {
    return;
  }
  loop_.Unwatch(pidfd_.get());
  ::syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
  pollfd end{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  ::poll(&end, 1, kKillWaitMs);
  ::waitpid(pid_, nullptr, WNOHANG);
  pidfd_.reset();
}

void SshConnection::Resume() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].fd.valid() && hooks_.has_room(kStreams[i]) &&
        std::exchange(streams_[i].is_paused, false)) {
      loop_.Watch(streams_[i].fd.get(), EPOLLIN, [this, i](uint32_t) { OnReadable(i); });
    }
  }
}

void SshConnection::OnReadable(size_t index) {
  Stream& stream = streams_[index];
  if (!hooks_.has_room(kStreams[index])) {
    stream.is_paused = true;
    loop_.Unwatch(stream.fd.get());
    return;
  }
  ReadPiece(index);
}

bool SshConnection::ReadPiece(size_t index) {
  Stream& stream = streams_[index];
  std::string piece(kReadBytes, '\0');
  const ssize_t n = ::read(stream.fd.get(), piece.data(), piece.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return false;
  }
  if (n <= 0) {
    CloseStream(index);
    return false;
  }
  stream.text.append(piece, 0, static_cast<size_t>(n));
  if (!stream.is_of_node) {
    TakeFirstLines(index);
  }
  // A hook may have ended it.
  if (stream.is_of_node && is_open()) {
    PassLines(index, /*is_all=*/false);
  }
  return stream.fd.valid();
}

void SshConnection::TakeFirstLines(size_t index) {
  Stream& stream = streams_[index];
  size_t end = 0;
  while ((end = stream.text.find('\n')) != std::string::npos) {
    const std::string line = stream.text.substr(0, end);
    stream.text.erase(0, end + 1);
    const auto build = ReadNodeHello(line);
    if (!build.has_value()) {
      NoteWords(absl::StrCat(line, "\n"));
      continue;
    }
    stream.is_of_node = true;
    last_words_.clear();
    if (kStreams[index] == ConsoleStream::kOut) {
      hooks_.on_hello(*build);
    }
    return;
  }
  if (stream.text.size() > kLongestLine) {
    NoteWords(std::exchange(stream.text, ""));
  }
}

void SshConnection::NoteWords(absl::string_view text) {
  absl::StrAppend(&last_words_, text);
  if (last_words_.size() > kLastWords) {
    last_words_.erase(0, last_words_.size() - kLastWords);
  }
}

void SshConnection::PassLines(size_t index, bool is_all) {
  std::string& text = streams_[index].text;
  if (is_all && !text.empty()) {
    text.push_back('\n');
  }
  const size_t end = text.size() > kLongestLine ? text.size() - 1 : text.rfind('\n');
  if (text.empty() || end == std::string::npos) {
    return;
  }
  const std::string lines = text.substr(0, end + 1);
  text.erase(0, end + 1);
  if (kStreams[index] == ConsoleStream::kError) {
    NoteWords(lines);
  }
  hooks_.on_lines(kStreams[index], lines);
}

void SshConnection::CloseStream(size_t index) {
  Stream& stream = streams_[index];
  if (stream.fd.valid()) {
    if (!stream.is_paused) {
      loop_.Unwatch(stream.fd.get());
    }
    stream.fd.reset();
  }
}

// What is in the pipes once ssh is gone is all that it said: it is taken whether or not the reader
// has room.
void SshConnection::OnProcessEnd() {
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  const bool is_reaped = ended < 0 && errno == ECHILD;
  if (ended != pid_ && !is_reaped) {
    return;
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status);
  for (size_t i = 0; i < streams_.size(); ++i) {
    for (size_t taken = 0; streams_[i].fd.valid() && taken < kLargestRest && ReadPiece(i);) {
      taken += kReadBytes;
    }
    CloseStream(i);
    if (streams_[i].is_of_node && is_open()) {
      PassLines(i, /*is_all=*/true);
    } else {
      NoteWords(std::exchange(streams_[i].text, ""));
    }
  }
  HangUp();
  if (is_open()) {
    loop_.Unwatch(pidfd_.get());
    pidfd_.reset();
    hooks_.on_end(is_reaped ? kUnknownCode : code);
  }
}

}  // namespace fsdprun
