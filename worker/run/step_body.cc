#include "worker/run/step_body.h"

#include <ATen/ATen.h>
#include <fsdp/clip_grad.h>

#include "worker/run/counted_targets.h"

namespace fsdprun::worker {

StepBody::StepBody(const RunContext& context, RunState& state, bool may_ignore_targets)
    : context_(context),
      state_(state),
      may_ignore_targets_(may_ignore_targets),
      judge_(context.config.train, context.world.device) {}

at::Tensor StepBody::NoLoss() const {
  return at::zeros({}, at::TensorOptions(at::kFloat).device(context_.world.device));
}

at::Tensor StepBody::Backward(const WeighedBatch& weighed, bool is_last_forward) {
  const auto& [batch, divisor, weight] = weighed;
  context_.vitals.Enter(contract::WorkerPhase::kForward);
  at::Tensor part = LossOf(state_.model.module, batch.inputs, batch.targets);
  if (divisor == 0) {
    part = part * 0;
  } else {
    part = weight.defined() ? (part * weight).to(part.scalar_type()) : part;
    part = divisor == 1 ? part : part / divisor;
  }
  state_.model.root.set_requires_gradient_sync(context_.config.train.sync_each_micro_batch ||
                                               is_last_forward);
  context_.vitals.Enter(contract::WorkerPhase::kBackward);
  part.backward();
  return part.detach();
}

at::Tensor StepBody::Tell(const at::Tensor& loss, const at::Tensor& numbers) {
  const at::Tensor told = at::cat({loss.unsqueeze(0), numbers});
  context_.world.group->all_reduce(told, fsdp::ReduceOp::kAvg, fsdp::Lane::kReduce)->wait();
  return told;
}

StepBody::Judged StepBody::Judge(const at::Tensor& told) {
  context_.vitals.Enter(contract::WorkerPhase::kOptimizer);
  at::Tensor loss = told[kToldLoss];
  if (may_ignore_targets_) {
    const at::Tensor share = told[kToldShare];
    loss = at::where(share > 0, loss / share, at::zeros_like(loss));
    DivideGradients(state_.model.root, share);
  }
  const at::Tensor norm =
      fsdp::clip_grad_norm_(state_.model.root, context_.config.train.max_grad_norm);
  return {loss, norm, judge_.Judge(loss, norm)};
}

at::Tensor StepBody::Update(const at::Tensor& told, const Judged& judged) {
  state_.optimizer->Step(judged.judgement.must_skip);
  state_.optimizer->ZeroGrad();
  return at::cat({judged.loss.unsqueeze(0), told.narrow(0, kToldStop, kToldShare),
                  judged.norm.unsqueeze(0), judged.judgement.verdict.unsqueeze(0)});
}

at::Tensor StepBody::Do(const std::vector<WeighedBatch>& batches, const at::Tensor& numbers) {
  at::Tensor loss = NoLoss();
  for (size_t i = 0; i < batches.size(); ++i) {
    loss += Backward(batches[i], /*is_last_forward=*/i + 1 == batches.size());
  }
  const at::Tensor told = Tell(loss, numbers);
  return Update(told, Judge(told));
}

}  // namespace fsdprun::worker
