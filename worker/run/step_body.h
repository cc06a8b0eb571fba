#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "worker/run/batches.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"
#include "worker/run/step_judge.h"
#include "worker/run/step_values.h"

namespace fsdprun::worker {

/// A batch of one forward, and how much it counts.
struct WeighedBatch {
  Batch batch;
  /// MicroBatch::divisor.
  double divisor = 0;
  /// What the mean loss is multiplied by: float32, 0-dim, on the device; undefined: 1.
  at::Tensor weight = {};
};

/// What of a step the device does. Nothing in it makes the host wait for a device, or depends on a
/// number of the host that another step has otherwise, but for the learning rates of SGD and Muon:
/// Note [A step as a graph]. Thread: one.
class StepBody {
 public:
  /// All references outlive this object. `may_ignore_targets`: of CountedTargets.
  StepBody(const RunContext& context, RunState& state, bool may_ignore_targets);

  /// 0-dim, float32, on the device.
  at::Tensor NoLoss() const;
  /// Forward and backward. Returns its part of the step's loss.
  at::Tensor Backward(const WeighedBatch& weighed, bool is_last_forward);
  /// The mean over the ranks of `loss` and of `numbers`, which begin at kToldStop and end at
  /// kToldShare: float32, on the device. Collective.
  at::Tensor Tell(const at::Tensor& loss, const at::Tensor& numbers);

  struct Judged {
    at::Tensor loss;
    at::Tensor norm;
    StepJudge::Judgement judgement;
  };
  /// The gradients are complete: clips them. Collective.
  Judged Judge(const at::Tensor& told);
  /// The step ends. Returns float32 [kToldCount].
  at::Tensor Update(const at::Tensor& told, const Judged& judged);

  /// All of it. Collective.
  at::Tensor Do(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers);

  StepJudge& judge() { return judge_; }

 private:
  RunContext context_;
  RunState& state_;
  const bool may_ignore_targets_;
  StepJudge judge_;
};

}  // namespace fsdprun::worker
