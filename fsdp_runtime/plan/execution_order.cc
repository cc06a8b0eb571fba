#include "fsdp_runtime/plan/execution_order.h"

#include <algorithm>
#include <utility>

namespace fsdp::plan {

void ExecutionOrder::begin_forward() {
  std::swap(predicted_, started_);
  started_.clear();
  ended_.clear();
  forward_cursor_ = 0;
  backward_cursor_ = 0;
}

Upcoming ExecutionOrder::on_forward(int64_t unit) {
  started_.push_back(unit);
  const auto from = predicted_.begin() + static_cast<std::ptrdiff_t>(forward_cursor_);
  const auto found = std::find(from, predicted_.end(), unit);
  if (found == predicted_.end()) {
    return {};
  }
  forward_cursor_ = static_cast<size_t>(found - predicted_.begin()) + 1;
  return Upcoming(std::span(predicted_).subspan(forward_cursor_));
}

void ExecutionOrder::on_forward_end(int64_t unit) {
  ended_.push_back(unit);
  backward_cursor_ = ended_.size();
}

void ExecutionOrder::begin_backward() { backward_cursor_ = ended_.size(); }

Upcoming ExecutionOrder::on_backward(int64_t unit) {
  // Two forwards may precede a backward: search down from the cursor, then again from the end.
  for (size_t end : {backward_cursor_, ended_.size()}) {
    for (size_t i = std::min(end, ended_.size()); i-- > 0;) {
      if (ended_[i] == unit) {
        backward_cursor_ = i;
        return Upcoming(std::span(ended_).first(i), /*is_reversed=*/true);
      }
    }
  }
  return {};
}

}  // namespace fsdp::plan
