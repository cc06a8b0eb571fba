#include "launcher/run/ssh_connection.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/ssh/node_hello.h"

namespace fsdprun {
namespace {

constexpr size_t kReadBytes = 65536;
/// A pipe holds less, unless somebody writes on.
constexpr size_t kLargestRest = 1u << 20;
/// A line that is longer is passed on in pieces.
constexpr size_t kLongestLine = 1u << 20;
constexpr size_t kLastWords = 4096;

constexpr std::array<ConsoleStream, 2> kStreams{ConsoleStream::kOut, ConsoleStream::kError};

}  // namespace

SshConnection::SshConnection(EventLoop& loop, Hooks hooks)
    : loop_(loop),
      hooks_(std::move(hooks)),
      process_(loop, {[this](ChildProcess::Pipes pipes) { OnStarted(std::move(pipes)); },
                      [this](int code) { OnProcessEnd(code); },
                      [this](const absl::Status& why) { OnFailure(why); }}) {}

SshConnection::~SshConnection() { Kill(); }

void SshConnection::Start(const std::vector<std::string>& command, const Environment& environment) {
  program_ = command.front();
  is_open_ = true;
  ChildProcess::Streams streams;
  streams.fill(ChildProcess::Stream::kPipe);
  process_.Start(command, environment, streams);
}

void SshConnection::OnStarted(ChildProcess::Pipes pipes) {
  input_ = std::move(pipes[STDIN_FILENO]);
  for (size_t i = 0; i < streams_.size(); ++i) {
    streams_[i].fd = std::move(pipes[i + 1]);
    loop_.Watch(streams_[i].fd.get(), EPOLLIN, [this, i](uint32_t) { OnReadable(i); });
  }
}

void SshConnection::OnFailure(const absl::Status& why) {
  is_open_ = false;
  hooks_.on_failure(
      absl::IsNotFound(why)
          ? absl::NotFoundError(absl::StrCat("cannot start ", program_,
                                             ": no such program here; install an ssh client, or "
                                             "give its path with --ssh-command"))
          : absl::Status(why.code(), absl::StrCat("cannot ", why.message())));
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
  is_open_ = false;
  process_.Kill();
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
void SshConnection::OnProcessEnd(int code) {
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
  if (std::exchange(is_open_, false)) {
    hooks_.on_end(code);
  }
}

}  // namespace fsdprun
