#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fsdp_runtime/src/trace/trace_log.h"

namespace fsdp {

/// Tells traces and LibTorch's profiler when one unit computes. Thread: the rank's and autograd's,
/// one at a time; a forward ends on the thread on which it has begun.
class UnitTrace {
 public:
  /// "layers.0", or "" of the root.
  void set_unit(const std::string& name) { unit_ = name.empty() ? "root" : name; }

  void begin_forward();
  /// No-op if none has begun.
  void end_forward();
  void begin_backward();
  /// No-op if none has begun.
  void end_backward();

 private:
  static void begin(uint64_t& began_ns) { began_ns = trace::is_on() ? trace::now_ns() : 0; }
  void end(uint64_t& began_ns, const char* what) const;

  std::string unit_ = "root";
  uint64_t forward_began_ns_ = 0;  // 0: none is recorded
  uint64_t backward_began_ns_ = 0;
  std::optional<at::RecordFunction> profiled_;
};

}  // namespace fsdp
