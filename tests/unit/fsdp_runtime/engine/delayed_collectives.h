#pragma once

#include <fsdp/collectives.h>

#include <functional>
#include <memory>
#include <utility>

namespace fsdp::testing {

/// One lane is slow: `delay`, work that does nothing, runs on it before each of its operations. So
/// what does not wait for it reads too early, or writes too early. Lanes of threads and of streams.
class DelayedCollectives : public RecordingCollectives {
 public:
  DelayedCollectives(std::shared_ptr<Collectives> inner, Lane lane, std::function<void()> delay)
      : RecordingCollectives(std::move(inner)), lane_(lane), delay_(std::move(delay)) {}

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    delay(issue);
    return RecordingCollectives::all_gather_into(output, input, std::move(issue));
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    delay(issue);
    return RecordingCollectives::reduce_scatter_into(output, input, op, std::move(issue));
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    delay(issue);
    return RecordingCollectives::all_reduce(tensor, op, std::move(issue));
  }
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    delay(issue);
    return RecordingCollectives::run_on_lane(std::move(issue), std::move(stage));
  }

 private:
  void delay(const Issue& issue) {
    if (issue.lane == lane_) {
      RecordingCollectives::run_on_lane(lane_, delay_);
    }
  }

  const Lane lane_;
  const std::function<void()> delay_;
};

}  // namespace fsdp::testing
