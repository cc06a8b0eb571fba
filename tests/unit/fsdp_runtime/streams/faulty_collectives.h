#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsdp_runtime/src/comm/ended_work.h"
#include "tests/unit/fsdp_runtime/streams/fake_collectives.h"
#include "tests/unit/fsdp_runtime/streams/fake_device.h"

namespace fsdp::testing {

/// What is wrong with the order of a group's operations of one kind.
enum class Fault {
  kNone,
  kIsNotWaitedFor,    // who waits for its work does not
  kRecordedTooEarly,  // the event behind it is recorded before it is launched
  kAheadOfTheCaller,  // its lane does not wait for the current stream
  kAheadOfItsInput,   // nor does it for what it depends on, Issue::after
  kOnTheOtherLane,    // and neither does that
  kBehindItsStage     // of a reduce-scatter: launched behind the next stage of its lane
};

/// A group on the fake device with a fault.
class FaultyCollectives : public FakeCollectives {
 public:
  /// `operation`: "all_gather", "reduce_scatter", "all_reduce", or "stage", on the reduce lane.
  FaultyCollectives(int64_t size, std::string operation, Fault fault)
      : FakeCollectives(size), operation_(std::move(operation)), fault_(fault) {}

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    return launch("all_gather", std::move(issue), [=, this](Issue how) {
      return FakeCollectives::all_gather_into(output, input, std::move(how));
    });
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    return launch("reduce_scatter", std::move(issue), [=, this](Issue how) {
      return FakeCollectives::reduce_scatter_into(output, input, op, std::move(how));
    });
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    return launch("all_reduce", std::move(issue), [=, this](Issue how) {
      return FakeCollectives::all_reduce(tensor, op, std::move(how));
    });
  }
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    const char* const kind = issue.lane == Lane::kReduce ? "stage" : "";
    WorkPtr work = launch(kind, std::move(issue), [=, this](Issue how) {
      return FakeCollectives::run_on_lane(std::move(how), stage);
    });
    if (std::function<void()> late = std::exchange(late_, nullptr)) {
      late();
    }
    return work;
  }

 private:
  using Launch = std::function<WorkPtr(Issue)>;

  WorkPtr launch(const std::string& kind, Issue issue, const Launch& operation) {
    if (kind != operation_) {
      return operation(std::move(issue));
    }
    switch (fault_) {
      case Fault::kNone:
        return operation(std::move(issue));
      case Fault::kIsNotWaitedFor:
        operation(std::move(issue));
        return std::make_shared<EndedWork>();
      case Fault::kRecordedTooEarly: {
        const WorkPtr early = FakeCollectives::run_on_lane(issue, [] {});
        operation(std::move(issue));
        return early;
      }
      case Fault::kAheadOfTheCaller: {
        const c10::StreamGuard elsewhere(idle_stream());
        return operation(std::move(issue));
      }
      case Fault::kAheadOfItsInput:
        issue.after = nullptr;
        return operation(std::move(issue));
      case Fault::kOnTheOtherLane:
        return operation(issue.lane == Lane::kReduce ? Lane::kGather : Lane::kReduce);
      case Fault::kBehindItsStage:
        late_ = [operation, issue] { operation(issue); };
        return std::make_shared<EndedWork>();
    }
    return nullptr;
  }

  /// One that has been given nothing. Taken late: the lanes of all groups have their numbers first.
  c10::Stream idle_stream() {
    if (!idle_) {
      idle_ =
          c10::Stream(c10::Stream::UNSAFE, FakeDevice::device(), FakeDevice::get().new_stream());
    }
    return *idle_;
  }

  const std::string operation_;
  const Fault fault_;
  std::optional<c10::Stream> idle_;
  std::function<void()> late_;
};

}  // namespace fsdp::testing
