#pragma once

#include "absl/strings/string_view.h"

namespace fsdprun {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Sets the lowest level that is printed; kWarning by default. Thread-safe.
void SetLogLevel(LogLevel level);

/// Parses LOGLEVEL's words (DEBUG, INFO, WARNING, ERROR; any case). Unknown words mean kWarning.
LogLevel ParseLogLevel(absl::string_view word);

/// Where finished lines go (without the newline). The default writes to standard error. The
/// launcher replaces it so that a line never cuts through the progress display.
using LogSink = void (*)(LogLevel level, absl::string_view line);
void SetLogSink(LogSink sink);

/// One line: `fsdprun <LEVEL> event key=value ...`. Thread-safe. kError means that a human must
/// act.
void Log(LogLevel level, absl::string_view line);

}  // namespace fsdprun
