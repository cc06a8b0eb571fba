#pragma once

#include <string>
#include <string_view>

namespace fsdprun::worker {

/// Writes torchelastic's error file atomically: temporary name, fsync, rename. `type` and `text`
/// become "<type>: <text>"; `stack` goes to extraInfo.py_callstack (empty: the message again). An
/// empty `path` does nothing. Never throws: it runs while the process is failing. Returns an empty
/// string, or what went wrong on which path.
std::string WriteErrorFile(const std::string& path, std::string_view type, std::string_view text,
                           std::string_view stack);

}  // namespace fsdprun::worker
