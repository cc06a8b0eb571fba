#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace fsdprun {

/// What a worker said about its failure in its error file (TORCHELASTIC_ERROR_FILE).
struct WorkerError {
  /// "<Type>: <text>".
  std::string message;
  /// Call stack, or the message when the file has none.
  std::string stack;
  /// Unix seconds, when the file says so.
  std::optional<int64_t> timestamp_s;
  /// The whole file, for passing on; empty when nothing could be read.
  std::string json;
  /// Since the file was last written, never negative. Unset on a network file system, which stamps
  /// files by a clock of its own.
  std::optional<std::chrono::nanoseconds> age;
};

/// The content, or in `problem` why there is none. A damaged file is not an error of the agent: a
/// worker may die while it writes.
struct ErrorFileResult {
  std::optional<WorkerError> error;
  /// Empty when `error` is set. kErrorFileNotWritten when there is no file.
  std::string problem;
};
inline constexpr char kErrorFileNotWritten[] = "not written";

/// Reads torchelastic's nested format, the plain one ({"message": "<text>", "timestamp": 10 or
/// "10"}) and nested ones without extraInfo. Reads at most kMaxErrorFileBytes.
ErrorFileResult ReadErrorFile(const std::string& path);

inline constexpr size_t kMaxErrorFileBytes = 8u << 20;

}  // namespace fsdprun
