#include "worker/run/trainer.h"

#include <fsdp/counters.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/step_list.h"
#include "formats/models/model_flops.h"
#include "fsdp_runtime/vitals/own_vitals.h"
#include "worker/batch/micro_batch_limit.h"
#include "worker/batch/step_plan.h"
#include "worker/metrics/peak_flops.h"
#include "worker/run/determinism.h"
#include "worker/run/failure.h"
#include "worker/run/out_of_memory.h"
#include "worker/run/resume.h"
#include "worker/run/start_limit.h"
#include "worker/run/stop_signal.h"
#include "worker/world/agreement.h"
#include "worker/world/device.h"

namespace fsdprun::worker {
namespace {

// How long a stop waits for the forward of an evaluation; see StopSignal.
constexpr auto kForwardTimeout = std::chrono::seconds(30);

ProgressView ChooseView(const WorkerEnvironment& environment) {
  if (environment.rank != 0) {
    return ProgressView::kNone;
  }
  if (environment.launcher_draws_progress) {
    return ProgressView::kLauncher;
  }
  return isatty(STDOUT_FILENO) == 1 ? ProgressView::kTerminal : ProgressView::kPlain;
}

RunReportOptions ReportOptions(const RunInputs& inputs, const WorkerEnvironment& environment) {
  const TrainConfig& config = inputs.config;
  return {
      .view = ChooseView(environment),
      .is_first_rank = environment.rank == 0,
      .total_steps = config.train.steps,
      .every_steps = config.metrics.every_steps,
      .metrics_path = config.metrics.jsonl,
      .tensorboard_dir = config.metrics.tensorboard,
      .checkpoint_dir = config.checkpoint.dir,
      .configuration = inputs.resolved.dump(2),
      .flops_per_token = ModelFlopsPerToken(inputs.model, config.data.seq_len, config.lora.is_on()),
      .is_unicode = environment.is_utf8};
}

/// Of all devices in a second; 0: not known.
double PeakFlopsOfJob(const TrainConfig& config, const World& world) {
  std::optional<double> of_device = config.metrics.peak_flops;
  if (!of_device && world.device.is_cuda()) {
    of_device = PeakFlopsOfMachine(GpuNames());
  }
  return of_device.value_or(0) * static_cast<double>(world.size());
}

}  // namespace

Trainer::Trainer(const Json& resolved, const WorkerEnvironment& environment,
                 ControlChannel& channel)
    : channel_(channel), vitals_(fsdp::own_vitals(), fsdp::collective_wait_time), stop_(channel) {
  vitals_.Enter(contract::WorkerPhase::kStarting);
  inputs_ = ReadInputs(resolved, environment);
  const TrainConfig& config = inputs_.config;
  vitals_.SetTotal(config.train.steps);
  is_restarted_ = environment.is_launched && environment.restart_count < environment.max_restarts;
  SetThreads(environment.world_size);
  report_.emplace(ReportOptions(inputs_, environment), channel);
  report_->Event("configuration: " + resolved.dump());

  auto held = HoldClaim(config.checkpoint.dir, environment.rank, environment.job_id);
  FormWorld();
  report_->SetPeakFlops(PeakFlopsOfJob(config, world_));
  if (config.train.deterministic) {
    const char* const workspace = std::getenv("CUBLAS_WORKSPACE_CONFIG");
    UseDeterministicAlgorithms(world_.device, workspace == nullptr ? "" : workspace);
  }
  MakeState();
  const LaunchIdentity identity = IdentifyLaunch(environment, checkpoint_group_);
  if (!held) {  // Under torchrun the launch has had no name until now.
    held = HoldClaim(config.checkpoint.dir, environment.rank, identity.launch.job_id);
  }
  Resume(identity, environment.generation);
}

void Trainer::FormWorld() {
  const TrainConfig& config = inputs_.config;
  world_ = JoinRanks(config.parallel);
  checkpoint_group_ = {world_.group, world_.device, nullptr,
                       std::make_shared<checkpoint::StepList>()};
  RequireAgreement(
      DescribeInput(inputs_.resolved, inputs_.model, *inputs_.train, inputs_.valid.get()),
      checkpoint_group_);
  if (!config.checkpoint.dir.empty()) {
    RequireSharedDirectory(config.checkpoint.dir, checkpoint_group_);
  }
  ArrangeRanks(config.parallel.dp_replicate, world_);
}

void Trainer::MakeState() {
  const TrainConfig& config = inputs_.config;
  state_.model = ShardModel(config, inputs_.model, world_);
  if (config.train.activation_checkpointing) {
    CheckpointActivations(state_.model);
  }
  state_.data = RecordData(*inputs_.train, config.data);
  state_.description = inputs_.description;
  state_.record = RecordRun(inputs_.model, inputs_.resolved, world_.size());
  batches_.emplace(
      inputs_.train,
      BatchOptions{.is_shuffled = config.data.shuffle,
                   .seed = config.data.seed,
                   .rank = world_.rank(),
                   .world_size = world_.size(),
                   .device = world_.device,
                   .sampler = config.data.sampler == "global" ? Sampler::kGlobal : Sampler::kTorch,
                   .drops_last = config.data.drop_last});
  state_.windows = batches_->window_count();
  state_.optimizer = MakeOptimizer(state_.model, config.optimizer);
  checkpoints_.emplace(Context(), checkpoint_group_, state_);
  PlanStep(config, world_.rank(), world_.size());  // refuses a batch that they cannot share
  trace_.emplace(Context());
}

void Trainer::Resume(const LaunchIdentity& identity, uint64_t generation) {
  resumer_.emplace(Context(), checkpoint_group_, identity, *batches_, state_);
  checkpoints_->Claim(identity, generation, [&] { return resumer_->Resume(); });
  must_evaluate_first_ = resumer_->owes_evaluation();
  launch_ = identity.launch.job_id;
  const std::string limit_text = TakeMicroBatchLimit();
  step_.emplace(Context(), *batches_, state_, *checkpoints_,
                TrainingStep::LatenessOn(world_.device));
  rollback_.emplace(Context(), state_, *resumer_, *checkpoints_, *step_);
  step_->GoOnFromState();
  report_->OpenMetrics({.completed_steps = state_.step,
                        .origin = {state_.run, identity.launch.job_id, generation},
                        .is_replaced = [this] { return checkpoints_->IsReplaced(); }});
  if (!limit_text.empty()) {
    report_->Warn(memory_notice_, state_.step, limit_text);
  }
}

std::string Trainer::TakeMicroBatchLimit() {
  const StartLimit found = FindStartLimit(
      {inputs_.config, inputs_.resolved, inputs_.model, world_.size(), state_.run, launch_},
      checkpoint_group_);
  if (!found.limit) {
    return found.left_aside;
  }
  KeepMicroBatchLimit(*found.limit);
  return ApplyStartLimit(*found.limit, world_.size(), inputs_.config);
}

void Trainer::KeepMicroBatchLimit(MicroBatchLimit limit) {
  if (limit.run == state_.run || world_.rank() != 0) {
    return;
  }
  limit.run = state_.run;
  checkpoint::FileSystem file_system;
  try {
    WriteMicroBatchLimit(file_system, inputs_.config.checkpoint.dir,
                         launch_ + "-" + std::to_string(world_.rank()), limit);
  } catch (const checkpoint::CheckpointError& error) {
    report_->Event("warning: another launch of this run will not know how many windows fit: " +
                   std::string(error.what()));
  }
}

template <class Action>
auto Trainer::WithinMemory(const Action& action, bool is_evaluation) {
  try {
    return action();
  } catch (const std::exception& error) {
    if (IsOutOfMemory(error)) {
      EndForMemory(error, is_evaluation);
    }
    throw;
  }
}

void Trainer::EndForMemory(const std::exception& error, bool is_evaluation) {
  TrainConfig config = inputs_.config;
  if (config.parallel.backend == "auto" && world_.device.is_cpu()) {
    config.parallel.backend = "gloo";  // what is estimated is that of CPUs
  }
  checkpoint::FileSystem file_system;
  worker::EndForMemory(file_system,
                       {.config = config,
                        .resolved = inputs_.resolved,
                        .model = inputs_.model,
                        .step = is_evaluation ? state_.step : state_.step + 1,
                        .rank = world_.rank(),
                        .ranks = world_.size(),
                        .run = state_.run,
                        .launch = launch_,
                        .is_restarted = is_restarted_,
                        .is_evaluation = is_evaluation,
                        .is_replaced = checkpoints_->IsReplaced(),
                        .has_graph = step_ && step_->has_graph()},
                       error);
}

void Trainer::Run() {
  const TrainConfig::Train& train = inputs_.config.train;
  std::optional<OwnStream> stream;
  if (train.step_graph) {
    stream.emplace(world_.device);
  }
  StopSignal::SetTimeout(stop_.step_timeout());
  StopSignal::Install();
  bool is_stopping = must_evaluate_first_ && Evaluate();
  while (state_.step < train.steps && !is_stopping) {
    is_stopping = StepAndFollow();
  }
  vitals_.EndSteps();
  vitals_.Enter(contract::WorkerPhase::kOther);
  is_stopping = is_stopping || (train.eval_every > 0 && Evaluate());
  StopSignal::Acknowledge();
  checkpoints_->Save(/*is_last=*/true);
  trace_->End();  // what it has to write must not take the time of the last checkpoint
  world_.group->barrier();
  checkpoints_->Release(is_stopping);
  report_->Event(is_stopping ? "stopped on request after step " + std::to_string(state_.step)
                             : "done: " + std::to_string(state_.step) + " steps");
  report_->End();
}

bool Trainer::StepAndFollow() {
  trace_->BeginStep(state_.step + 1);
  vitals_.BeginStep(state_.step + 1);
  const StepOutcome outcome = WithinMemory([this] { return DoSteps(); });
  trace_->EndStep();
  const bool is_bad = outcome.bad_step.has_value();
  const bool is_last = outcome.is_stopping || state_.step >= inputs_.config.train.steps;
  const bool is_given_up =
      outcome.has_saved && checkpoints_->Finish(/*is_wanted=*/!outcome.must_save,
                                                /*is_last_left=*/is_last && !is_bad);
  checkpoints_->WarnIfLate();
  if (is_bad) {
    return rollback_->GoBack(*outcome.bad_step, is_given_up || outcome.is_stopping);
  }
  return is_given_up || outcome.is_stopping || Follow(outcome);
}

bool Trainer::Follow(const StepOutcome& outcome) {
  try {
    if (state_.step >= inputs_.config.train.steps) {
      checkpoints_->RequireFiniteWeights();  // while the run can still go back
    }
    return (IsEvery(inputs_.config.train.eval_every) && Evaluate()) ||
           ((IsEvery(inputs_.config.checkpoint.every_steps) || outcome.is_save_due) &&
            checkpoints_->Save()) ||
           (outcome.must_save && checkpoints_->SaveOnRequest());
  } catch (const DivergedError& error) {
    checkpoints_->FinishBeforeError();
    const std::optional<BadStep> bad = step_->BlameLastStep(error.what());
    if (!bad) {
      throw;
    }
    return rollback_->GoBack(*bad, /*is_stopping=*/false);
  }
}

StepOutcome Trainer::DoSteps() {
  const TrainConfig& config = inputs_.config;
  try {
    StepOutcome outcome = step_->Do(/*is_traced=*/trace_->is_on());
    const bool is_something_due = outcome.is_stopping || outcome.has_saved || outcome.must_save ||
                                  outcome.is_save_due || state_.step >= config.train.steps ||
                                  IsEvery(config.train.eval_every) ||
                                  IsEvery(config.checkpoint.every_steps);
    if (is_something_due) {
      outcome.Add(step_->Flush());
    }
    return outcome;
  } catch (const DivergedError&) {
    checkpoints_->FinishBeforeError();
    throw;
  }
}

EvaluationOptions Trainer::OptionsOfEvaluation() {
  const TrainConfig& config = inputs_.config;
  // As given: whatever limit was found since, the same windows are evaluated.
  const int64_t micro_batch = inputs_.resolved.at("train").at("micro_batch_size");
  return {.batch_size = config.train.micro_batch_size,
          .windows = std::min(config.train.eval_batches, inputs_.valid->count()) * micro_batch,
          .forwards_per_poll = step_->forwards_per_poll(),
          .is_stop_requested = [this] { return stop_.IsRequested(); }};
}

bool Trainer::Evaluate() {
  const int64_t step = state_.step;
  if (state_.evaluated_step == step) {
    return false;
  }
  const Vitals::Within phase(vitals_, contract::WorkerPhase::kEvaluating);
  StopSignal::SetTimeout(kForwardTimeout);
  const EvaluationOptions options = OptionsOfEvaluation();
  const std::optional<double> loss =
      WithinMemory([&] { return worker::Evaluate(world_, state_.model, *inputs_.valid, options); },
                   /*is_evaluation=*/true);
  if (!loss) {
    report_->Event("the evaluation after step " + std::to_string(step) +
                   " was left unfinished because of the stop");
    return true;
  }
  state_.evaluated_step = step;
  report_->Evaluation(step, *loss);
  return false;
}

}  // namespace fsdprun::worker
