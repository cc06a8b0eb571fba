#include "worker/run/trainer.h"

#include <fsdp/counters.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "formats/checkpoint/step_list.h"
#include "fsdp_runtime/vitals/own_vitals.h"
#include "worker/run/evaluation.h"
#include "worker/run/failure.h"
#include "worker/run/optimizer_groups.h"
#include "worker/run/resume.h"
#include "worker/run/stop_signal.h"
#include "worker/world/agreement.h"

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

RunReportOptions ReportOptions(const TrainConfig& config, const WorkerEnvironment& environment) {
  return {.view = ChooseView(environment),
          .is_first_rank = environment.rank == 0,
          .total_steps = config.train.steps,
          .every_steps = config.metrics.every_steps,
          .metrics_path = config.metrics.jsonl,
          .checkpoint_dir = config.checkpoint.dir};
}

}  // namespace

Trainer::Trainer(const Json& resolved, const WorkerEnvironment& environment,
                 ControlChannel& channel)
    : channel_(channel), vitals_(fsdp::own_vitals(), fsdp::collective_wait_time), stop_(channel) {
  vitals_.Enter(contract::WorkerPhase::kStarting);
  inputs_ = ReadInputs(resolved, environment);
  const TrainConfig& config = inputs_.config;
  vitals_.SetTotal(config.train.steps);
  SetThreads(environment.world_size);
  report_.emplace(ReportOptions(config, environment), channel);
  report_->Event("configuration: " + resolved.dump());

  auto held = HoldClaim(config.checkpoint.dir, environment.rank, environment.job_id);
  FormWorld();
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
  batches_.emplace(inputs_.train,
                   BatchOptions{config.data.seq_len, config.data.shuffle, config.data.seed,
                                world_.rank(), world_.size(), world_.device});
  state_.windows = batches_->window_count();
  state_.optimizer = MakeOptimizer(state_.model.root, config.optimizer);
  checkpoints_.emplace(Context(), checkpoint_group_, state_);
  step_.emplace(Context(), *batches_, state_, *checkpoints_);
}

void Trainer::Resume(const LaunchIdentity& identity, uint64_t generation) {
  Resumer resumer(Context(), checkpoint_group_, identity, *batches_, state_);
  checkpoints_->Claim(identity, generation, [&] { return resumer.Resume(); });
  must_evaluate_first_ = resumer.owes_evaluation();
  report_->OpenMetrics(state_.step, {state_.run, identity.launch.job_id, generation},
                       [this] { return checkpoints_->IsReplaced(); });
}

void Trainer::Run() {
  const TrainConfig::Train& train = inputs_.config.train;
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
  world_.group->barrier();
  checkpoints_->Release(is_stopping);
  report_->Event(is_stopping ? "stopped on request after step " + std::to_string(state_.step)
                             : "done: " + std::to_string(state_.step) + " steps");
}

bool Trainer::StepAndFollow() {
  vitals_.BeginStep(state_.step + 1);
  const StepOutcome outcome = DoStep();
  const bool is_given_up =
      outcome.has_saved && checkpoints_->Finish(/*is_wanted=*/!outcome.must_save);
  checkpoints_->WarnIfLate();
  const auto is_due = [this](int64_t every) { return every > 0 && state_.step % every == 0; };
  return is_given_up || outcome.is_stopping ||
         (is_due(inputs_.config.train.eval_every) && Evaluate()) ||
         (is_due(inputs_.config.checkpoint.every_steps) && checkpoints_->Save()) ||
         (outcome.must_save && checkpoints_->SaveOnRequest());
}

StepOutcome Trainer::DoStep() {
  try {
    return step_->Do();
  } catch (const DivergedError&) {
    checkpoints_->FinishBeforeError();
    throw;
  }
}

bool Trainer::Evaluate() {
  const int64_t step = state_.step;
  if (state_.evaluated_step == step) {
    return false;
  }
  const TrainConfig& config = inputs_.config;
  const Vitals::Within phase(vitals_, contract::WorkerPhase::kEvaluating);
  StopSignal::SetTimeout(kForwardTimeout);
  const std::optional<double> loss = worker::Evaluate(
      world_, state_.model, *inputs_.valid,
      {config.data.seq_len, config.train.micro_batch_size, config.train.eval_batches,
       step_->forwards_per_poll(), [this] { return stop_.IsRequested(); }});
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
