#include "fsdp_runtime/src/engine/unit_trace.h"

#include <utility>

namespace fsdp {

void UnitTrace::begin_forward() {
  begin(forward_began_ns_);
  profiled_.emplace(at::RecordScope::USER_SCOPE);
  if (profiled_->isActive()) {
    profiled_->before("fsdp::forward " + unit_);
  } else {
    profiled_.reset();
  }
}

void UnitTrace::end_forward() {
  profiled_.reset();
  end(forward_began_ns_, "forward ");
}

void UnitTrace::begin_backward() { begin(backward_began_ns_); }

void UnitTrace::end_backward() { end(backward_began_ns_, "backward "); }

void UnitTrace::end(uint64_t& began_ns, const char* what) const {
  if (const uint64_t began = std::exchange(began_ns, 0); began != 0) {
    trace::add({.kind = trace::Event::Kind::kSpan,
                .category = "unit",
                .name = what + unit_,
                .at_ns = began,
                .length_ns = trace::now_ns() - began});
  }
}

}  // namespace fsdp
