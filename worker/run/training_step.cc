#include "worker/run/training_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>

#include "worker/run/failure.h"
#include "worker/run/stop_signal.h"
#include "worker/world/device.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Looks at the request to stop about once in this time while forwards follow each other.
constexpr double kPollSeconds = 0.1;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string Text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Loss and norm are all-reduced, so all ranks throw or none.
void CheckFinite(const StepMetrics& metrics) {
  for (const auto& [what, value] :
       {std::pair("loss", metrics.loss), std::pair("gradient norm", metrics.grad_norm)}) {
    if (!std::isfinite(value)) {
      throw DivergedError(
          "step " + std::to_string(metrics.step) + ": the " + what + " is " + Text(double{value}) +
          " (lr " + Text(metrics.lr) +
          "); the weights were not updated. Lower optimizer.lr, clip with train.max_grad_norm, or "
          "look at the data of this step");
    }
  }
}

}  // namespace

TrainingStep::TrainingStep(const RunContext& context, TrainBatches& batches, RunState& state,
                           CheckpointKeeper& checkpoints)
    : context_(context), batches_(batches), state_(state), checkpoints_(checkpoints) {}

int64_t TrainingStep::forwards_per_poll() const {
  const double forwards = static_cast<double>(context_.config.train.grad_accumulation);
  if (step_seconds_ <= 0) {
    return 1;
  }
  return std::max<int64_t>(1, std::llround(std::min(1e9, kPollSeconds * forwards / step_seconds_)));
}

at::Tensor TrainingStep::Backward(int64_t forwards, bool is_last_forward) {
  const TrainConfig::Train& train = context_.config.train;
  context_.vitals.Enter(contract::WorkerPhase::kWaitingForData);
  const Batch batch = batches_.Next(train.micro_batch_size, state_.cursor);
  context_.vitals.Enter(contract::WorkerPhase::kForward);
  at::Tensor part = CausalLoss(state_.model.module(batch.inputs), batch.targets);
  if (forwards > 1) {
    part = part / static_cast<double>(forwards);
  }
  state_.model.root.set_requires_gradient_sync(train.sync_each_micro_batch || is_last_forward);
  context_.vitals.Enter(contract::WorkerPhase::kBackward);
  part.backward();
  return part.detach();
}

float TrainingStep::Conclude(const at::Tensor& loss, double seconds, StepOutcome& outcome) {
  // One small all-reduce: the mean loss, whether any rank was asked to stop, so that all ranks stop
  // after the same step, the mean time, so that all ranks ask equally often, whether rank 0 was
  // asked for a checkpoint, and whether any rank still writes one, or cannot tell how it ends.
  const float stop = context_.stop.IsRequested() ? 1.0F : 0.0F;
  const float save = context_.channel.TakeSave() && context_.world.rank() == 0 ? 1.0F : 0.0F;
  const float writing = checkpoints_.IsWriting() ? 1.0F : 0.0F;
  const float lost = checkpoints_.HasLostTheWay() ? 1.0F : 0.0F;
  const at::Tensor report = at::stack({loss, at::full_like(loss, stop),
                                       at::full_like(loss, seconds), at::full_like(loss, save),
                                       at::full_like(loss, writing), at::full_like(loss, lost)});
  context_.world.group->all_reduce(report, fsdp::ReduceOp::kAvg, fsdp::Lane::kReduce)->wait();
  const at::Tensor on_host = report.cpu();
  outcome.is_stopping = on_host[1].item<float>() > 0;
  step_seconds_ = on_host[2].item<float>();
  outcome.must_save = on_host[3].item<float>() > 0;
  outcome.has_saved = checkpoints_.is_saving() && on_host[4].item<float>() == 0;
  if (on_host[5].item<float>() > 0) {
    checkpoints_.GiveUpBegun();
  }
  return on_host[0].item<float>();
}

std::optional<float> TrainingStep::ForwardBackward(int64_t forwards, StepOutcome& outcome) {
  const Clock::time_point start = Clock::now();
  const int64_t every = forwards_per_poll();
  at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(context_.world.device));
  for (int64_t i = 0; i < forwards; ++i) {
    std::optional<Vote> vote;
    if (i > 0 && i % every == 0) {
      const bool must_abandon = context_.stop.MustAbandonStep(i, forwards, SecondsSince(start));
      vote.emplace(context_.world, must_abandon ? kAbandonStep : kGoOn);
    }
    loss += Backward(forwards, /*is_last_forward=*/i + 1 == forwards);
    if (vote && vote->Highest() == kAbandonStep) {
      return std::nullopt;
    }
  }
  return Conclude(loss, SecondsSince(start), outcome);
}

StepOutcome TrainingStep::Do() {
  // Of the phase before it may be minutes.
  StopSignal::SetTimeout(checkpoints_.StepTimeout());
  const Clock::time_point start = Clock::now();
  const TrainConfig& config = context_.config;
  StepMetrics metrics;
  metrics.step = state_.step + 1;
  metrics.lr = config.optimizer.lr * config.schedule.Factor(state_.step);
  state_.optimizer->set_lr(metrics.lr);

  StepOutcome outcome;
  const DataCursor cursor = state_.cursor;
  const std::optional<float> loss = ForwardBackward(config.train.grad_accumulation, outcome);
  if (!loss) {
    state_.optimizer->zero_grad();
    state_.cursor = cursor;
    context_.report.Event("step " + std::to_string(metrics.step) +
                          " was left unfinished: its end does not fit into the grace of the stop");
    return {.is_stopping = true};
  }
  context_.vitals.Enter(contract::WorkerPhase::kOptimizer);
  metrics.loss = *loss;
  metrics.grad_norm =
      fsdp::clip_grad_norm_(state_.model.root, config.train.max_grad_norm).item<float>();
  CheckFinite(metrics);
  const Clock::duration waited = checkpoints_.AwaitCopy();
  state_.optimizer->step();
  state_.optimizer->zero_grad();
  const int64_t tokens = config.train.micro_batch_size * config.train.grad_accumulation *
                         context_.world.size() * config.data.seq_len;
  state_.step = metrics.step;
  state_.tokens += tokens;
  metrics.tokens = state_.tokens;
  metrics.step_seconds = SecondsSince(start);
  metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_seconds;
  context_.stop.NoteStep(Clock::now() - start - waited);
  Report(metrics);
  return outcome;
}

void TrainingStep::Report(StepMetrics metrics) {
  const DeviceMemory memory = MemoryOf(context_.world.device);
  context_.vitals.SetResults(
      {metrics.loss, metrics.tokens_per_second, metrics.tokens, memory.bytes, memory.peak_bytes});
  metrics.memory_bytes = PeakMemoryBytes(context_.world.device);
  context_.report.Step(metrics);
}

}  // namespace fsdprun::worker
