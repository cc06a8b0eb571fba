#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp::plan {

/// Records the order in which units run forward and tells which one to prefetch. Units are
/// identified by small integers; a unit may run several times per forward, and units may run inside
/// others. The answers depend only on the calls made, so ranks that run the same model issue the
/// same all-gathers in the same order.
class ExecutionOrder {
 public:
  /// A new forward of the whole model starts: the recorded order becomes the prediction.
  void begin_forward();
  /// `unit` starts its forward. Returns the unit predicted to start next; nullopt in the first
  /// forward, at the end, or when the forward has left the predicted path.
  std::optional<int64_t> on_forward(int64_t unit);
  /// `unit` ends its forward. Backward starts the units in the reverse of this order: a unit that
  /// encloses others starts before them in both directions.
  void on_forward_end(int64_t unit);
  /// A new backward starts.
  void begin_backward();
  /// `unit` starts its backward. Returns the unit whose forward ended just before its own, which is
  /// the one whose backward comes next.
  std::optional<int64_t> on_backward(int64_t unit);

 private:
  std::vector<int64_t> predicted_;
  std::vector<int64_t> started_;
  std::vector<int64_t> ended_;
  size_t forward_cursor_ = 0;   // next index to look at in predicted_
  size_t backward_cursor_ = 0;  // one past the next index to look at in ended_
};

}  // namespace fsdp::plan
