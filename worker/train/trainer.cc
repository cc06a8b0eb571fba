#include "worker/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "worker/train/evaluation.h"
#include "worker/train/failure.h"
#include "worker/train/stop_signal.h"
#include "worker/train/training_state.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// How long a stop waits for the current phase; see StopSignal. Before the first step there is
// nothing to save, so a signal terminates the process.
constexpr auto kLongPhaseTimeout = std::chrono::milliseconds(30'000);
constexpr auto kStartTimeout = std::chrono::milliseconds(10'000);
constexpr double kMinStepTimeoutSeconds = 2;
constexpr double kTimeoutInSteps = 4;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string Text(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

/// Loss and norm are all-reduced, so all ranks throw or none.
void CheckFinite(const StepMetrics& metrics) {
  for (const auto& [what, value] :
       {std::pair("loss", metrics.loss), std::pair("gradient norm", metrics.grad_norm)}) {
    if (!std::isfinite(value)) {
      throw DivergedError(
          "step " + std::to_string(metrics.step) + ": the " + what + " is " +
          Text("%g", double{value}) + " (lr " + Text("%g", metrics.lr) +
          "); the weights were not updated. Lower optimizer.lr, clip with train.max_grad_norm, or "
          "look at the data of this step");
    }
  }
}

}  // namespace

void Trainer::Run() {
  const TrainConfig::Train& train = config_.train;
  bool is_stop_requested = false;
  StopSignal::SetTimeout(kStartTimeout);
  StopSignal::Install();
  while (step_ < train.steps && !is_stop_requested) {
    is_stop_requested = Step();
    const bool is_due =
        config_.checkpoint.every_steps > 0 && step_ % config_.checkpoint.every_steps == 0;
    if (train.eval_every > 0 && step_ % train.eval_every == 0 && !is_stop_requested) {
      EvaluateNow();
    }
    if (is_due && !is_stop_requested) {
      SaveNow();
    }
  }
  StopSignal::Acknowledge();
  if (train.eval_every > 0 && !is_stop_requested) {
    EvaluateNow();
  }
  SaveNow();
  job_.group->barrier();
  progress_->Event(is_stop_requested ? "stopped on request after step " + std::to_string(step_)
                                     : "done: " + std::to_string(step_) + " steps");
}

bool Trainer::IsStopRequested() {
  return StopSignal::IsRaised() || channel_.PollStop().has_value();
}

float Trainer::ForwardBackward(int64_t forwards, bool& is_stop_requested) {
  at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(job_.device));
  for (int64_t i = 0; i < forwards; ++i) {
    const Batch batch = batches_->Next(config_.train.micro_batch_size);
    at::Tensor part = CausalLoss(job_.model(batch.inputs), batch.targets);
    if (forwards > 1) {
      part = part / static_cast<double>(forwards);
    }
    part.backward();
    loss += part.detach();
  }
  // One small all-reduce: the mean loss, and whether any rank was asked to stop, so that all ranks
  // stop after the same step.
  const float stop = IsStopRequested() ? 1.0F : 0.0F;
  const at::Tensor report = at::stack({loss, at::full_like(loss, stop)});
  job_.group->all_reduce(report, fsdp::ReduceOp::kAvg, fsdp::Lane::kReduce)->wait();
  const at::Tensor on_host = report.cpu();
  is_stop_requested = on_host[1].item<float>() > 0;
  return on_host[0].item<float>();
}

bool Trainer::Step() {
  const Clock::time_point start = Clock::now();
  const TrainConfig::Train& train = config_.train;
  StepMetrics metrics;
  metrics.step = step_ + 1;
  metrics.lr = config_.optimizer.lr * config_.schedule.Factor(step_);
  optimizer_->set_lr(metrics.lr);

  bool is_stop_requested = false;
  metrics.loss = ForwardBackward(train.grad_accumulation, is_stop_requested);
  metrics.grad_norm = fsdp::clip_grad_norm_(job_.root, train.max_grad_norm).item<float>();
  CheckFinite(metrics);
  optimizer_->step();
  optimizer_->zero_grad();

  step_ = metrics.step;
  const int64_t step_tokens =
      train.micro_batch_size * train.grad_accumulation * job_.world_size() * config_.data.seq_len;
  tokens_ += step_tokens;
  metrics.tokens = tokens_;
  metrics.step_seconds = SecondsSince(start);
  metrics.tokens_per_second = static_cast<double>(step_tokens) / metrics.step_seconds;
  StopSignal::SetTimeout(std::chrono::milliseconds(static_cast<int64_t>(
      1000 * std::max(kMinStepTimeoutSeconds, kTimeoutInSteps * metrics.step_seconds))));
  Report(metrics);
  return is_stop_requested;
}

void Trainer::Report(StepMetrics metrics) {
  if (job_.rank() != 0) {
    return;
  }
  metrics.memory_bytes = PeakMemoryBytes(job_.device);
  const int64_t every = config_.metrics.every_steps;
  if (every > 0 && (step_ % every == 0 || step_ == config_.train.steps)) {
    metrics_->Append(FormatStepRecord(metrics));
  }
  progress_->Step(metrics);
}

void Trainer::EvaluateNow() {
  if (evaluated_step_ == step_) {
    return;
  }
  StopSignal::SetTimeout(kLongPhaseTimeout);
  const double loss = Evaluate(job_, *valid_, config_.data.seq_len, config_.train.micro_batch_size,
                               config_.train.eval_batches);
  evaluated_step_ = step_;
  if (metrics_) {
    metrics_->Append(FormatEvalRecord(step_, loss));
  }
  progress_->Event("eval after step " + std::to_string(step_) + ": loss " + Text("%.4f", loss));
}

void Trainer::SaveNow() {
  if (!saver_ || saved_step_ == step_) {
    return;
  }
  StopSignal::SetTimeout(kLongPhaseTimeout);
  if (!HasFiniteWeights(job_)) {
    throw DivergedError("step " + std::to_string(step_) +
                        ": its update has made weights infinite or NaN, so no checkpoint of it was "
                        "written. Lower optimizer.lr, and resume from the previous checkpoint");
  }
  checkpoint::State state = CheckpointTensors(job_, *optimizer_, CaptureSteps(*optimizer_));
  const double lr = config_.optimizer.lr * config_.schedule.Factor(std::max<int64_t>(0, step_ - 1));
  state.param_groups_json = FormatParamGroups(job_, config_.optimizer, lr);
  state.training_state_json = FormatTrainingState(
      {step_, tokens_, batches_->cursor(), batches_->window_count(), CaptureRng(), data_record_});
  state.tokens = tokens_;
  const std::string path = saver_->Save(step_, state);
  saved_step_ = step_;
  channel_.SendCheckpoint(step_, path);
  progress_->Event("checkpoint " + path);
}

}  // namespace fsdprun::worker
