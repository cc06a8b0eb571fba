#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/device_graph.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/run/step_body.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

// Note [A step as a graph]
// With train.step_graph a whole step is recorded once and then launched as one (fsdp::DeviceGraph),
// so that the host does not launch kernel after kernel. All that one step is given and another is
// not lies in memory that stays where it is, and is copied there before each launch: the batches,
// their weights, and what the ranks tell each other. All that a step leaves for the next one is
// written in place: parameters, the optimizer's state with its step counts, what a spike is
// measured by. The learning rate is a number of the device in AdamW alone, so only that goes with
// it. Steps are launched one by one until the optimizer, the units and LibTorch have allocated what
// they keep; and again after a load, which makes new tensors of some state.
//
// In a launched step nothing happens in the middle. So the copy of a save that was begun is waited
// for before it, not before its update, and a stop does not leave it unfinished. Steps of a trace
// are launched one by one, since a graph has no timeline. The bits are the same both ways.

/// A step that is launched as a whole. Thread: one.
class StepGraph {
 public:
  /// How many steps are launched one by one before.
  static constexpr int64_t kStepsBefore = 3;

  /// Both outlive this object.
  StepGraph(const World& world, StepBody& body) : world_(world), body_(body) {}

  /// A step was launched one by one.
  void NoteStep() { ++steps_before_; }
  /// The state was loaded.
  void Forget();
  bool IsReady() const { return steps_before_ >= kStepsBefore; }
  /// A step with these batches and numbers, as StepBody::Do: as many in each call, of the same
  /// shapes and divisors. Collective.
  at::Tensor Launch(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);

 private:
  void Record(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);
  /// To where the graph reads them.
  void Give(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);

  const World& world_;
  StepBody& body_;
  int64_t steps_before_ = 0;
  // What the graph reads and writes; it is the last, so that it ends before them.
  std::vector<WeighedBatch> batches_;
  at::Tensor numbers_;
  at::Tensor values_;
  std::unique_ptr<fsdp::DeviceGraph> graph_;
};

}  // namespace fsdprun::worker
