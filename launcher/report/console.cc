#include "launcher/report/console.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

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

/// Both lead to the same pipe, terminal or file.
bool IsSameFile(int a, int b) {
  struct stat of_a {};
  struct stat of_b {};
  return ::fstat(a, &of_a) == 0 && ::fstat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace

Console::Console(const Options& options, const std::function<void()>& on_room,
                 const std::function<void(int error)>& on_failure)
    : options_(options), error_(options.error_fd, {options.width, options.room_bytes}, {on_room}) {
  if (!IsSameFile(options.out_fd, options.error_fd)) {
    out_.emplace(options.out_fd, ConsoleChannel::Options{options.width, options.room_bytes},
                 ConsoleChannel::Callbacks{on_room, on_failure});
  }
}

void Console::WriteLines(ConsoleStream stream, absl::string_view text) {
  if (text.empty()) {
    return;
  }
  std::string lines(text);
  if (lines.back() != '\n' && lines.back() != '\r') {
    lines.push_back('\n');
  }
  ChannelOf(stream).Write(std::move(lines));
}

void Console::SetProgress(std::string text) {
  if (options_.draws_progress) {
    error_.SetProgress(std::move(text));
  }
}

void Console::WaitForRoom(MonoTime deadline) {
  if (out_.has_value() && !out_->HasRoom()) {
    out_->WaitForRoom(deadline);
  } else {
    error_.WaitForRoom(deadline);
  }
}

bool Console::WaitWritten(MonoTime deadline) {
  const bool is_out_written = !out_.has_value() || out_->WaitWritten(deadline);
  return error_.WaitWritten(deadline) && is_out_written;
}

void Console::Close(MonoTime deadline) {
  if (out_.has_value()) {
    out_->Close(deadline);
  }
  error_.Close(deadline);
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
