#include "worker/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "formats/checkpoint/file_system.h"
#include "worker/train/evaluation.h"
#include "worker/train/failure.h"
#include "worker/train/stop_signal.h"
#include "worker/train/training_state.h"
#include "worker/train/vote.h"

namespace fsdprun::worker {
namespace {

using Clock = std::chrono::steady_clock;

// How long a stop waits for the current phase; see StopSignal.
constexpr auto kForwardTimeout = std::chrono::seconds(30);
// A save ends by itself; the grace may allow minutes.
constexpr auto kSaveTimeout = std::chrono::minutes(10);

// Looks at the request to stop about once in this time while forwards follow each other.
constexpr double kPollSeconds = 0.1;

/// What a rank answers when all are asked whether to stop.
enum StopAnswer { kGoOn = 0, kStop = 1, kAbandonStep = 2 };

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
  const int64_t save_every = config_.checkpoint.every_steps;
  const auto is_due = [this](int64_t every) { return every > 0 && step_ % every == 0; };
  StopSignal::SetTimeout(stop_plan_.step_timeout());
  StopSignal::Install();
  bool is_stopping = must_evaluate_first_ && EvaluateNow();
  while (step_ < train.steps && !is_stopping) {
    vitals_.BeginStep(step_ + 1);
    is_stopping = Step() || (is_due(train.eval_every) && EvaluateNow()) ||
                  (is_due(save_every) && SaveNow()) || (must_save_ && SaveOnRequest());
  }
  vitals_.EndSteps();
  vitals_.Enter(contract::WorkerPhase::kOther);
  is_stopping = is_stopping || (train.eval_every > 0 && EvaluateNow());
  StopSignal::Acknowledge();
  SaveNow(/*is_last=*/true);
  job_.group->barrier();
  // What was stopped may be started again by its launcher.
  if (saver_ && !(is_stopping && may_be_restarted_)) {
    saver_->Release();
  }
  progress_->Event(is_stopping ? "stopped on request after step " + std::to_string(step_)
                               : "done: " + std::to_string(step_) + " steps");
}

bool Trainer::IsStopRequested() {
  if (const auto raised_at = StopSignal::RaisedAt()) {
    stop_plan_.Request(*raised_at);
  }
  const auto record = channel_.PollStop();
  if (record && record->grace_ms > 0) {
    stop_plan_.Request(Clock::now(), std::chrono::milliseconds(record->grace_ms));
  } else if (record) {
    stop_plan_.Request(Clock::now());
  }
  return stop_plan_.is_requested();
}

bool Trainer::MustGiveUpSave() {
  return IsStopRequested() && stop_plan_.MustGiveUpSave(Clock::now());
}

// Note [Stopping in the middle]
// A request to stop reaches the ranks at different times, and a forward or a step that one rank
// leaves blocks the others. So all ranks vote, while they compute: in an evaluation, in a step of
// several forwards, after a save. A step is finished if it and a checkpoint fit into the grace;
// otherwise its gradients are dropped, and the checkpoint is of the step before. An evaluation is
// dropped in any case, and done by the run that continues. A save is the work kept: it goes on
// until the grace is nearly over.
bool Trainer::MustAbandonStep(int64_t done, int64_t forwards, double seconds) {
  const double rest = seconds / static_cast<double>(done) * static_cast<double>(forwards - done);
  return IsStopRequested() &&
         !stop_plan_.CanFinishStep(Clock::now(), std::chrono::duration_cast<Clock::duration>(
                                                     std::chrono::duration<double>(rest)));
}

int64_t Trainer::ForwardsPerPoll() const {
  const double forwards = static_cast<double>(config_.train.grad_accumulation);
  if (step_seconds_ <= 0) {
    return 1;
  }
  return std::max<int64_t>(1, std::llround(std::min(1e9, kPollSeconds * forwards / step_seconds_)));
}

/// Returns its part of the loss.
at::Tensor Trainer::Backward(int64_t forwards, bool is_last_forward) {
  vitals_.Enter(contract::WorkerPhase::kWaitingForData);
  const Batch batch = batches_->Next(config_.train.micro_batch_size);
  vitals_.Enter(contract::WorkerPhase::kForward);
  at::Tensor part = CausalLoss(job_.model(batch.inputs), batch.targets);
  if (forwards > 1) {
    part = part / static_cast<double>(forwards);
  }
  job_.root.set_requires_gradient_sync(config_.train.sync_each_micro_batch || is_last_forward);
  vitals_.Enter(contract::WorkerPhase::kBackward);
  part.backward();
  return part.detach();
}

std::optional<float> Trainer::ForwardBackward(int64_t forwards, bool& is_stopping) {
  const Clock::time_point start = Clock::now();
  const int64_t every = ForwardsPerPoll();
  at::Tensor loss = at::zeros({}, at::TensorOptions(at::kFloat).device(job_.device));
  for (int64_t i = 0; i < forwards; ++i) {
    std::optional<Vote> vote;
    if (i > 0 && i % every == 0) {
      vote.emplace(job_, MustAbandonStep(i, forwards, SecondsSince(start)) ? kAbandonStep : kGoOn);
    }
    loss += Backward(forwards, /*is_last_forward=*/i + 1 == forwards);
    if (vote && vote->Highest() == kAbandonStep) {
      return std::nullopt;
    }
  }
  // One small all-reduce: the mean loss, whether any rank was asked to stop, so that all ranks stop
  // after the same step, the mean time, so that all ranks ask equally often, and whether rank 0 was
  // asked for a checkpoint.
  const float stop = IsStopRequested() ? 1.0F : 0.0F;
  const float save = channel_.TakeSave() && job_.rank() == 0 ? 1.0F : 0.0F;
  const at::Tensor report =
      at::stack({loss, at::full_like(loss, stop), at::full_like(loss, SecondsSince(start)),
                 at::full_like(loss, save)});
  job_.group->all_reduce(report, fsdp::ReduceOp::kAvg, fsdp::Lane::kReduce)->wait();
  const at::Tensor on_host = report.cpu();
  is_stopping = on_host[1].item<float>() > 0;
  step_seconds_ = on_host[2].item<float>();
  must_save_ = on_host[3].item<float>() > 0;
  return on_host[0].item<float>();
}

bool Trainer::Step() {
  // Of the phase before it may be minutes.
  StopSignal::SetTimeout(stop_plan_.step_timeout());
  const Clock::time_point start = Clock::now();
  const TrainConfig::Train& train = config_.train;
  StepMetrics metrics;
  metrics.step = step_ + 1;
  metrics.lr = config_.optimizer.lr * config_.schedule.Factor(step_);
  optimizer_->set_lr(metrics.lr);

  bool is_stopping = false;
  const DataCursor cursor = batches_->cursor();
  const std::optional<float> loss = ForwardBackward(train.grad_accumulation, is_stopping);
  if (!loss) {
    optimizer_->zero_grad();
    batches_->set_cursor(cursor);
    progress_->Event("step " + std::to_string(metrics.step) +
                     " was left unfinished: its end does not fit into the grace of the stop");
    return true;
  }
  vitals_.Enter(contract::WorkerPhase::kOptimizer);
  metrics.loss = *loss;
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
  stop_plan_.NoteStep(Clock::now() - start);
  const DeviceMemory memory = MemoryOf(job_.device);
  vitals_.SetResults(
      {metrics.loss, metrics.tokens_per_second, tokens_, memory.bytes, memory.peak_bytes});
  Report(metrics);
  return is_stopping;
}

void Trainer::Report(StepMetrics metrics) {
  if (job_.rank() != 0) {
    return;
  }
  metrics.memory_bytes = PeakMemoryBytes(job_.device);
  const int64_t every = config_.metrics.every_steps;
  if (every > 0 && (step_ % every == 0 || step_ == config_.train.steps)) {
    Record(FormatStepRecord(metrics));
  }
  progress_->Step(metrics);
}

bool Trainer::EvaluateNow() {
  if (evaluated_step_ == step_) {
    return false;
  }
  const Vitals::Within phase(vitals_, contract::WorkerPhase::kEvaluating);
  StopSignal::SetTimeout(kForwardTimeout);
  const std::optional<double> loss =
      Evaluate(job_, *valid_,
               {config_.data.seq_len, config_.train.micro_batch_size, config_.train.eval_batches,
                ForwardsPerPoll(), [this] { return IsStopRequested(); }});
  if (!loss) {
    progress_->Event("the evaluation after step " + std::to_string(step_) +
                     " was left unfinished because of the stop");
    return true;
  }
  evaluated_step_ = step_;
  Record(FormatEvalRecord(step_, *loss));
  progress_->Event("eval after step " + std::to_string(step_) + ": loss " + Text("%.4f", *loss));
  return false;
}

void Trainer::OpenMetrics() {
  const auto is_replaced = [this] { return saver_ && saver_->IsReplaced(); };
  if (!metrics_->is_open() && is_replaced()) {
    throw MetricsReplacedError("metrics file " + config_.metrics.jsonl +
                                   " is left alone, because another start has taken over " +
                                   config_.checkpoint.dir,
                               0);
  }
  metrics_->Open(is_replaced);
}

// Note [Faults that may pass]
// A disk that is full now need not be so at the next period. So what cannot be written then is told
// and left out: metrics on rank 0 alone, a checkpoint on all ranks, which see the same error. Only
// the last checkpoint must succeed, since nothing comes after it.
void Trainer::Record(const std::string& record) {
  if (!metrics_) {
    return;
  }
  try {
    OpenMetrics();
    if (!record.empty()) {
      metrics_->Append(record);
    }
  } catch (const MetricsReplacedError& error) {
    metrics_.reset();
    FaultNotice last;  // told in any case, and once
    Warn(last, std::string(error.what()) + "; no more metrics are written");
  } catch (const MetricsError& error) {
    if (!checkpoint::MayPass(error.error_number())) {
      throw;
    }
    Warn(metrics_notice_,
         std::string(error.what()) + "; training goes on and tries again at the next record");
  }
}

void Trainer::Warn(FaultNotice& notice, const std::string& text) {
  const auto line = job_.rank() == 0 ? notice.Tell(text, Clock::now()) : std::nullopt;
  if (!line) {
    return;
  }
  std::fprintf(stderr, "warning: %s\n", line->c_str());
  try {
    if (metrics_) {
      OpenMetrics();
      metrics_->Append(FormatWarningRecord(step_, *line));
    }
  } catch (const MetricsError&) {
    // It was told; the next record tells what is wrong with the file.
  }
}

bool Trainer::SaveNow(bool is_last) {
  if (!saver_ || saved_step_ == step_ || is_save_given_up_) {
    return is_save_given_up_;
  }
  const Vitals::Within phase(vitals_, contract::WorkerPhase::kSaving);
  StopSignal::SetTimeout(kSaveTimeout);
  const Clock::time_point start = Clock::now();
  if (!HasFiniteWeights(job_)) {
    throw DivergedError("step " + std::to_string(step_) +
                        ": its update has made weights infinite or NaN, so no checkpoint of it was "
                        "written. Lower optimizer.lr, and resume from the previous checkpoint");
  }
  std::string path;
  try {
    path = saver_->Save(step_, CaptureState());
  } catch (const checkpoint::ClaimHeldError&) {
    throw;
  } catch (const checkpoint::CheckpointError& error) {
    if (error.error_number() != ECANCELED) {
      const std::string text = std::string(error.what()) + "; " + LastSaveText();
      if (is_last) {
        throw checkpoint::CheckpointError("the last " + text, error.error_number());
      }
      if (!checkpoint::MayPass(error.error_number())) {
        throw;
      }
      channel_.SendNoCheckpoint(step_, text);
      Warn(save_notice_, text + "; training goes on and tries again at the next period");
      return Vote(job_, IsStopRequested() ? kStop : kGoOn).Highest() != kGoOn;
    }
    is_save_given_up_ = true;
    channel_.SendNoCheckpoint(step_, "the grace of a stop is over");
    progress_->Event("warning: the checkpoint of step " + std::to_string(step_) +
                     " was given up, because the grace of the stop is over; " + LastSaveText());
    return true;
  }
  saved_step_ = step_;
  stop_plan_.NoteSave(Clock::now() - start);
  // Who has asked for one meanwhile gets this one: no step was done since.
  channel_.PollStop();
  channel_.TakeSave();
  channel_.SendCheckpoint(step_, path);
  progress_->Event("checkpoint " + path);
  return Vote(job_, IsStopRequested() ? kStop : kGoOn).Highest() != kGoOn;
}

bool Trainer::SaveOnRequest() {
  if (saver_) {
    return SaveNow();
  }
  channel_.SendNoCheckpoint(step_, "checkpoint.dir is not set");
  progress_->Event("warning: a checkpoint of step " + std::to_string(step_) +
                   " was asked for, and not saved: checkpoint.dir is not set; training goes on");
  return false;
}

std::string Trainer::LastSaveText() const {
  return saved_step_ < 0 ? "there is none of this run"
                         : "the newest is of step " + std::to_string(saved_step_);
}

checkpoint::State Trainer::CaptureState() {
  checkpoint::State state = CheckpointTensors(job_, *optimizer_, CaptureSteps(*optimizer_));
  const double lr = config_.optimizer.lr * config_.schedule.Factor(std::max<int64_t>(0, step_ - 1));
  state.param_groups_json = FormatParamGroups(job_, config_.optimizer, lr);
  state.training_state_json =
      FormatTrainingState({step_, tokens_, batches_->cursor(), batches_->window_count(),
                           CaptureRng(), data_record_, evaluated_step_, run_record_});
  state.tokens = tokens_;
  state.run = run_;
  return state;
}

}  // namespace fsdprun::worker
