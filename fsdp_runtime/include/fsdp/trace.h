#pragma once

/// @file
/// A timeline of what libfsdp does: units, collectives, waits and memory, for Perfetto.

#include <fsdp/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fsdp {

/// @addtogroup observe
/// @{

/// What start_trace() records, and where to.
struct FSDP_API TraceOptions {
  /// Of the file. It is written when the trace ends, as a whole or not at all.
  std::string path;
  /// Shown as the process, so that the files of all ranks can be opened together. Unset: that of
  /// the environment variable RANK, or 0.
  std::optional<int64_t> rank = std::nullopt;
  /// Of about 100 bytes each. Later events are counted, and not kept.
  size_t max_events = size_t{1} << 20;
};

/// Records from now on, in this process, on all of its threads:
///
/// * forward and backward of each unit, and for which gathers and reductions the rank has waited,
/// * collectives, from when this rank has entered them until their result was there,
/// * the bytes in use for gathered parameters, unreduced gradients and what reductions give,
/// * the program's own TraceRange.
///
/// A step of a model with 32 units is about 500 events. While it is off it costs nothing that can
/// be measured. With a device, times are those of the host, which issues work ahead: the profiler
/// of LibTorch shows the device, and has the units' forwards as ranges, whether this is on or off.
///
/// Without a change of the program: set FSDP_TRACE_DIR to a folder; then each rank records from
/// init_process_group() on and writes `rank-<rank>.json` there when the process ends normally.
///
/// Thread: any. Errors: TORCH_CHECK if a trace is running, and without a path.
FSDP_API void start_trace(const TraceOptions& options);

/// Ends the trace and writes it, in the JSON format of Chrome's trace events, which
/// https://ui.perfetto.dev and chrome://tracing read. No-op if none is running. Blocks until the
/// file is on the disk. Errors: TORCH_CHECK with the path and what the system says; the events are
/// lost then.
FSDP_API void stop_trace();

/// A range of the program's own in the trace, on the calling thread, from construction to
/// destruction:
///
/// ```cpp
/// fsdp::TraceRange range("data");
/// ```
class FSDP_API TraceRange {
 public:
  /// Nothing is kept if no trace is running.
  explicit TraceRange(const std::string& name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  /// No copies: it is the range.
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  struct Open;
  std::unique_ptr<Open> open_;
};

/// @}

}  // namespace fsdp
