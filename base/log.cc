#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

constexpr const char* kLevelNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};

void WriteToStderr(LogLevel, absl::string_view line) {
  const std::string text = absl::StrCat(line, "\n");
  // A closed standard error is not a failure, and there is nowhere to report it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

std::atomic<LogLevel> g_level{LogLevel::kWarning};
std::atomic<LogSink> g_sink{&WriteToStderr};

}  // namespace

void SetLogLevel(LogLevel level) { g_level.store(level, std::memory_order_relaxed); }

void SetLogSink(LogSink sink) { g_sink.store(sink, std::memory_order_release); }

LogLevel ParseLogLevel(absl::string_view word) {
  const std::string upper = absl::AsciiStrToUpper(word);
  for (int i = 0; i < 4; ++i) {
    if (upper == kLevelNames[i]) {
      return static_cast<LogLevel>(i);
    }
  }
  return LogLevel::kWarning;
}

void Log(LogLevel level, absl::string_view line) {
  if (level < g_level.load(std::memory_order_relaxed)) {
    return;
  }
  const std::string text =
      absl::StrCat("fsdprun ", kLevelNames[static_cast<int>(level)], " ", line);
  g_sink.load(std::memory_order_acquire)(level, text);
}

}  // namespace fsdprun
