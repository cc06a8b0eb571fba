#pragma once

#include <fsdp/export.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp::trace {

/// Of whom a recording is.
struct Subject {
  int64_t rank = 0;
  int64_t pid = 0;
  std::string host = {};
  std::map<int, std::string> threads = {};  // names by thread id
  /// CLOCK_REALTIME less CLOCK_MONOTONIC, so that recordings of several hosts can be laid side by
  /// side.
  int64_t clock_offset_ns = 0;
};

/// Gives `write` the recording in the JSON format of Chrome's trace events, which Perfetto and
/// chrome://tracing read, piece by piece. The rank is the process there, so that the files of all
/// ranks can be opened together. Pure.
FSDP_API void write_chrome_trace(const Recording& recording, const Subject& subject,
                                 const std::function<void(std::string_view)>& write);

}  // namespace fsdp::trace
