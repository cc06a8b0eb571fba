#include "worker/run/step_judge.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace fsdprun::worker {
namespace {

constexpr double kLeastDeviation = 0.01;  // of the mean

bool Halts(Verdict verdict, const TrainConfig::Train& train) {
  const StepAction action = ActionFor(verdict, train);
  return action == StepAction::kStop || action == StepAction::kRollBack;
}

}  // namespace

StepJudge::StepJudge(const TrainConfig::Train& train, at::Device device)
    : train_(train), device_(device) {
  Restore({});
}

StepJudge::Judgement StepJudge::Judge(const at::Tensor& loss, const at::Tensor& grad_norm) {
  const at::NoGradGuard no_grad;
  const at::Tensor values = at::stack({loss, grad_norm}).to(at::kDouble);
  const at::Tensor is_finite = at::isfinite(values).all();
  at::Tensor verdict = is_finite.logical_not().to(at::kFloat);  // kNonFinite is 1
  if (finds_spikes()) {
    const at::Tensor is_spike = IsSpike(values).logical_and(is_finite);
    verdict = verdict + is_spike.to(at::kFloat) * static_cast<double>(Verdict::kSpike);
    Push(values, verdict == 0);
  }
  halted_.logical_or_(MustHalt(verdict));
  return {verdict, halted_.logical_or(verdict != 0).to(at::kFloat)};
}

at::Tensor StepJudge::IsSpike(const at::Tensor& values) const {
  const at::Tensor mean = window_.mean(1);
  const at::Tensor deviation = window_.std(1, /*unbiased=*/true);
  const at::Tensor limit =
      mean + at::maximum(deviation, mean.abs() * kLeastDeviation) * train_.spike_deviations;
  return (values > limit).any().logical_and(count_ >= train_.spike_window);
}

void StepJudge::Push(const at::Tensor& values, const at::Tensor& is_good) {
  const at::Tensor pushed =
      at::cat({window_.narrow(1, 1, train_.spike_window - 1), values.unsqueeze(1)}, 1);
  window_.copy_(at::where(is_good, pushed, window_));
  count_.add_(is_good.to(at::kLong));
}

at::Tensor StepJudge::MustHalt(const at::Tensor& verdict) const {
  at::Tensor halts = at::zeros_like(verdict, at::kBool);
  for (const Verdict bad : {Verdict::kNonFinite, Verdict::kSpike}) {
    if (Halts(bad, train_)) {
      halts = halts.logical_or(verdict == static_cast<double>(bad));
    }
  }
  return halts;
}

JudgedSteps StepJudge::Steps() const {
  JudgedSteps steps;
  if (!finds_spikes()) {
    return steps;
  }
  const int64_t filled = std::min(count_.item<int64_t>(), train_.spike_window);
  const at::Tensor values =
      window_.narrow(1, train_.spike_window - filled, filled).cpu().contiguous();
  const auto* data = values.const_data_ptr<double>();
  steps.losses.assign(data, data + filled);
  steps.grad_norms.assign(data + filled, data + 2 * filled);
  return steps;
}

void StepJudge::Restore(const JudgedSteps& steps) {
  halted_ = at::zeros({}, at::TensorOptions(at::kBool).device(device_));
  if (!finds_spikes()) {
    return;
  }
  const int64_t size = train_.spike_window;
  at::Tensor window = at::zeros({2, size}, at::kDouble);
  // Of another window, the newest.
  const int64_t filled = std::min(static_cast<int64_t>(steps.losses.size()), size);
  auto* const end_of_losses = window.mutable_data_ptr<double>() + size;
  std::copy_backward(steps.losses.end() - filled, steps.losses.end(), end_of_losses);
  std::copy_backward(steps.grad_norms.end() - filled, steps.grad_norms.end(), end_of_losses + size);
  window_ = window.to(device_);
  count_ = at::full({}, filled, at::TensorOptions(at::kLong).device(device_));
}

}  // namespace fsdprun::worker
