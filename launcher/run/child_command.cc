#include "launcher/run/child_command.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

constexpr Duration kRetry = std::chrono::milliseconds(50);
constexpr size_t kReadBytes = 65536;
/// A pipe holds less, unless somebody writes on.
constexpr size_t kLargestRest = 1u << 20;
/// A line that is longer is passed on in pieces.
constexpr size_t kLongestLine = 1u << 20;

using Stream = ChildProcess::Stream;

}  // namespace

ChildCommand::ChildCommand(EventLoop& loop, Reads reads, Hooks hooks)
    : loop_(loop),
      reads_(reads),
      hooks_(std::move(hooks)),
      process_(loop,
               {[this](ChildProcess::Pipes pipes) { OnStarted(std::move(pipes[STDERR_FILENO])); },
                [this](int code) {
                  TakeRest();
                  hooks_.on_end(code);
                },
                [this](const absl::Status& why) { hooks_.on_failure(why); }}) {}

ChildCommand::~ChildCommand() {
  loop_.Cancel(retry_);
  if (output_.valid()) {
    loop_.Unwatch(output_.get());
  }
}

void ChildCommand::Start(const std::vector<std::string>& command, const Environment& environment) {
  process_.Start(
      command, environment,
      {Stream::kNothing, reads_ == Reads::kAll ? Stream::kPipeOfError : Stream::kOfLauncher,
       Stream::kPipe});
}

void ChildCommand::OnStarted(UniqueFd output) {
  output_ = std::move(output);
  loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
}

void ChildCommand::Kill() {
  loop_.Cancel(retry_);
  if (output_.valid()) {
    loop_.Unwatch(output_.get());
    output_.reset();
  }
  process_.Kill();
}

void ChildCommand::OnOutput() {
  if (!hooks_.has_room()) {
    loop_.Unwatch(output_.get());
    retry_ = loop_.At(MonoNow() + kRetry, [this] {
      loop_.Watch(output_.get(), EPOLLIN, [this](uint32_t) { OnOutput(); });
    });
    return;
  }
  if (const ssize_t n = ReadPiece(); n == 0) {
    CloseOutput();
  }
}

// Returns 0 at the end, and a negative number if there is nothing now.
ssize_t ChildCommand::ReadPiece() {
  std::string piece(kReadBytes, '\0');
  const ssize_t n = ::read(output_.get(), piece.data(), piece.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return n;
  }
  if (n > 0) {
    text_.append(piece, 0, static_cast<size_t>(n));
    PassLines();
    return n;
  }
  return 0;
}

// What is in the pipe once the process is gone is all that it said: it is taken whether or not the
// reader has room, who may have stopped for good, and nobody else with the other end is waited for.
void ChildCommand::TakeRest() {
  for (size_t taken = 0; output_.valid() && taken < kLargestRest;) {
    const ssize_t n = ReadPiece();
    if (n <= 0) {
      break;
    }
    taken += static_cast<size_t>(n);
  }
  CloseOutput();
}

void ChildCommand::CloseOutput() {
  loop_.Cancel(retry_);
  if (!output_.valid()) {
    return;
  }
  loop_.Unwatch(output_.get());
  output_.reset();
  if (!text_.empty()) {
    hooks_.on_lines(absl::StrCat(std::exchange(text_, ""), "\n"));
  }
}

void ChildCommand::PassLines() {
  const size_t end = text_.size() > kLongestLine ? text_.size() - 1 : text_.rfind('\n');
  if (end != std::string::npos) {
    hooks_.on_lines(absl::string_view(text_).substr(0, end + 1));
    text_.erase(0, end + 1);
  }
}

}  // namespace fsdprun
