#pragma once

#include <ATen/core/Tensor.h>

#include "worker/config/config.h"
#include "worker/run/bad_steps.h"
#include "worker/run/judged_steps.h"

namespace fsdprun::worker {

// Note [Judged on the device]
// Whether a step's update is left out must be known before the update, and asking the device would
// stop it until the host has read the answer and issued the next kernels. So the device decides:
// the optimizer takes what the judge says as a gradient scaler's found_inf. The host reads it later
// and does the rest: records, the limits, going back to a checkpoint. Where a bad step ends or
// redoes what follows, the device leaves out all updates from then on, until the host has come to
// it.

/// Says of each step whether it is good. Equal on all ranks, if what it is given is. Thread: one.
///
/// A step is bad if its loss or gradient norm is not finite; and with train.on_spike, once there
/// have been N = train.spike_window good steps, if one of the two is more than
///
///   mean + z * max(deviation, mean / 100)
///
/// of the last N good ones, in float64, z = train.spike_deviations, with the sample's standard
/// deviation (divided by N - 1).
class StepJudge {
 public:
  StepJudge(const TrainConfig::Train& train, at::Device device);

  struct Judgement {
    at::Tensor verdict;    // float32, 0-dim: a Verdict
    at::Tensor must_skip;  // the same: 1 if nothing may be updated, else 0
  };
  /// `loss` and `grad_norm`: float32, 0-dim, on the device. Without a wait of the host.
  Judgement Judge(const at::Tensor& loss, const at::Tensor& grad_norm);

  /// Blocks the host until the device has judged; empty without train.on_spike.
  JudgedSteps Steps() const;
  /// Goes on from there: also with updates.
  void Restore(const JudgedSteps& steps);

 private:
  bool finds_spikes() const { return train_.on_spike != "off"; }
  at::Tensor IsSpike(const at::Tensor& values) const;
  void Push(const at::Tensor& values, const at::Tensor& is_good);
  /// 1 for verdicts that nothing is updated behind.
  at::Tensor MustHalt(const at::Tensor& verdict) const;

  TrainConfig::Train train_;
  at::Device device_;
  // Written in place by Judge: Note [A step as a graph].
  at::Tensor window_;  // float64, [2, spike_window]: losses, norms; the newest last
  at::Tensor count_;   // int64, 0-dim: good steps
  at::Tensor halted_;  // bool, 0-dim
};

}  // namespace fsdprun::worker
