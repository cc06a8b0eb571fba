#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace fsdp::plan {

/// The units that are predicted to start next, in this order. Valid until the next call of the
/// order that has told them.
class Upcoming {
 public:
  Upcoming() = default;
  /// In the order of `units`, or in the reverse order.
  explicit Upcoming(std::span<const int64_t> units, bool is_reversed = false)
      : units_(units), is_reversed_(is_reversed) {}
  size_t size() const { return units_.size(); }
  int64_t operator[](size_t i) const { return units_[is_reversed_ ? units_.size() - 1 - i : i]; }

 private:
  std::span<const int64_t> units_;
  bool is_reversed_ = false;
};

/// Records the order in which units run forward and tells which one to prefetch. Units are
/// identified by small integers; a unit may run several times per forward, and units may run inside
/// others. The answers depend only on the calls made, so ranks that run the same model issue the
/// same all-gathers in the same order.
class ExecutionOrder {
 public:
  /// A new forward of the whole model starts: the recorded order becomes the prediction.
  void begin_forward();
  /// `unit` starts its forward. Returns the units predicted to start next; none in the first
  /// forward, at the end, or when the forward has left the predicted path.
  Upcoming on_forward(int64_t unit);
  /// `unit` ends its forward. Backward starts the units in the reverse of this order: a unit that
  /// encloses others starts before them in both directions.
  void on_forward_end(int64_t unit);
  /// A new backward starts.
  void begin_backward();
  /// `unit` starts its backward. Returns the units whose forward ended before its own, the last one
  /// first: their backward comes next.
  Upcoming on_backward(int64_t unit);

 private:
  std::vector<int64_t> predicted_;
  std::vector<int64_t> started_;
  std::vector<int64_t> ended_;
  size_t forward_cursor_ = 0;   // next index to look at in predicted_
  size_t backward_cursor_ = 0;  // one past the next index to look at in ended_
};

}  // namespace fsdp::plan
