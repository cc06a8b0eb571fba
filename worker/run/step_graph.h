#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/device_graph.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/run/step_body.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

// Note [A step as a graph]
// With train.step_graph a whole step is captured once and then replayed (fsdp::DeviceGraph), so
// that the host does not launch kernel after kernel. All that one step is given and another is not
// lies in memory that stays where it is, and is copied there before each replay: the batches, their
// weights, and what the ranks tell each other. All that a step leaves for the next one is written
// in place: parameters, the optimizer's state with its step counts, what a spike is measured by.
// The learning rate is a number of the device in AdamW alone, so only that goes with it. Steps are
// issued part by part until the optimizer, the units and LibTorch have allocated what they keep;
// and again after a load, which makes new tensors of some state.
//
// In a replay nothing happens in the middle. So the copy of a save that was begun is waited for
// before it, not before its update; and a stop cannot leave it unfinished, so where steps are long
// the ranks ask each other before it. Steps of a trace are issued part by part, since a graph has
// no timeline, and its memory is given back for them. The bits are the same both ways.

using MakeDeviceGraph = std::function<std::unique_ptr<fsdp::DeviceGraph>(at::Device)>;

/// A step as a graph. Thread: one.
class StepGraph {
 public:
  /// How many steps are issued part by part before.
  static constexpr int64_t kStepsBefore = 3;

  /// Both outlive this object.
  StepGraph(const World& world, StepBody& body, MakeDeviceGraph make)
      : world_(world), body_(body), make_(std::move(make)) {}

  /// A step was issued part by part.
  void NoteStep() { ++steps_before_; }
  /// Gives its memory back: the state was loaded, or others need it.
  void Forget();
  bool IsReady() const { return steps_before_ >= kStepsBefore; }
  bool IsCaptured() const { return graph_ != nullptr; }
  /// A step with these batches and numbers, as StepBody::Do: as many in each call, of the same
  /// shapes and divisors. Collective.
  at::Tensor Do(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);

 private:
  void Capture(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);
  /// To where the graph reads them.
  void Give(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);

  const World& world_;
  StepBody& body_;
  const MakeDeviceGraph make_;
  int64_t steps_before_ = 0;
  // What the graph reads and writes; it is the last, so that it ends before them.
  std::vector<WeighedBatch> batches_;
  at::Tensor numbers_;
  at::Tensor values_;
  at::Tensor mark_;
  std::unique_ptr<fsdp::DeviceGraph> graph_;
};

}  // namespace fsdprun::worker
