#include "worker/run/training_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "worker/run/device_values.h"
#include "worker/run/failure.h"
#include "worker/run/stop_signal.h"
#include "worker/world/device.h"
#include "worker/world/vote.h"

namespace fsdprun::worker {
namespace {

// Looks at the request to stop about once in this time while forwards follow each other.
constexpr double kPollSeconds = 0.1;

// Before a step as a graph that is as long as this, the ranks ask each other whether to stop: that
// the host waits for the device then costs next to nothing.
constexpr double kLongStepSeconds = 1;

// Of a step whose batches differ in size, what follows one is known ahead up to so many.
constexpr int64_t kForwardsAhead = 65536;

double SecondsIn(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string Text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// "step 14: the loss is nan".
std::string Describe(Verdict verdict, const StepMetrics& metrics, const TrainConfig::Train& train) {
  const std::string step = "step " + std::to_string(metrics.step) + ": ";
  if (verdict == Verdict::kSpike) {
    return step + "the loss " + Text(double{metrics.loss}) + " or the gradient norm " +
           Text(double{metrics.grad_norm}) + " is more than " + Text(train.spike_deviations) +
           " standard deviations above the mean of " + std::to_string(train.spike_window) +
           " good steps";
  }
  const bool is_loss = !std::isfinite(metrics.loss);
  return step + "the " + (is_loss ? "loss" : "gradient norm") + " is " +
         Text(double{is_loss ? metrics.loss : metrics.grad_norm});
}

[[noreturn]] void Diverge(const std::string& what, const StepMetrics& metrics,
                          const std::string& why) {
  throw DivergedError(what + " (lr " + Text(metrics.lr) + "); the weights were not updated" + why +
                      ". Lower optimizer.lr, clip with train.max_grad_norm, or look at the data "
                      "of this step");
}

}  // namespace

void StepOutcome::Add(const StepOutcome& later) {
  is_stopping = is_stopping || later.is_stopping;
  must_save = must_save || later.must_save;
  is_save_due = is_save_due || later.is_save_due;
  has_saved = has_saved || later.has_saved;
  bad_step = bad_step ? bad_step : later.bad_step;
}

TrainingStep::TrainingStep(const RunContext& context, TrainBatches& batches, RunState& state,
                           CheckpointKeeper& checkpoints, size_t lateness,
                           MakeDeviceGraph make_graph)
    : context_(context),
      batches_(batches),
      state_(state),
      checkpoints_(checkpoints),
      lateness_(lateness),
      plan_(PlanStep(context.config, context.world.rank(), context.world.size())),
      counted_(batches.data().may_ignore_targets()),
      body_(context, state, counted_.may_ignore_targets()),
      bad_steps_(context.config.train) {
  if (context_.config.train.step_graph) {
    graph_.emplace(context_.world, body_, std::move(make_graph));
  }
  if (plan_.is_uniform() || plan_.forwards > kForwardsAhead) {
    return;
  }
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < plan_.forwards && plan_.At(i).divisor != 0; ++i) {
    sizes.push_back(plan_.At(i).samples);
  }
  batches_.ExpectSteps(std::move(sizes), plan_.is_even ? 0 : plan_.samples);
}

int64_t TrainingStep::forwards_per_poll() const {
  const auto forwards = static_cast<double>(plan_.forwards);
  if (step_seconds_ <= 0) {
    return 1;
  }
  return std::max<int64_t>(1, std::llround(std::min(1e9, kPollSeconds * forwards / step_seconds_)));
}

WeighedBatch TrainingStep::NextBatch(const MicroBatch& micro) {
  context_.vitals.Enter(contract::WorkerPhase::kWaitingForData);
  const bool counts = micro.divisor != 0;
  WeighedBatch weighed{counts ? batches_.Next(micro.samples, state_.cursor) : Padding(),
                       micro.divisor};
  first_batch_ = first_batch_ ? first_batch_ : weighed.batch;
  if (counted_.may_ignore_targets()) {
    const double weight = counts ? counted_.Weigh(weighed.batch) : 0;
    weighed.weight = ValuesOn(context_.world.device, {static_cast<float>(weight)}).squeeze(0);
  }
  return weighed;
}

Batch TrainingStep::Padding() const {
  const at::Tensor inputs = first_batch_->inputs.narrow(0, 0, 1);
  return {inputs, /*targets=*/inputs, 0};  // of those of the batch, none might count
}

DataCursor TrainingStep::EndOfStep(const DataCursor& cursor) const {
  return plan_.is_even ? batches_.AfterRounds(cursor, plan_.own_samples)
                       : batches_.Behind(cursor, plan_.samples);
}

at::Tensor TrainingStep::NumbersToTell(double seconds) {
  const bool is_first = context_.world.rank() == 0;
  const bool is_stop_requested = context_.stop.IsRequested();  // reads the channel
  const bool was_asked = context_.channel.TakeSave();
  std::vector<float> numbers(kToldShare);
  const auto tell = [&numbers](Told which, double value) {
    numbers[which - kToldStop] = static_cast<float>(value);
  };
  tell(kToldStop, is_stop_requested ? 1 : 0);
  tell(kToldSeconds, seconds);
  tell(kToldSave, was_asked && is_first ? 1 : 0);
  tell(kToldDue, is_first && checkpoints_.IsDue() ? 1 : 0);
  tell(kToldWriting, checkpoints_.IsWriting() ? 1 : 0);
  tell(kToldLost, checkpoints_.HasLostTheWay() ? 1 : 0);
  tell(kToldShare, counted_.share() * plan_.own_weight);
  return ValuesOn(context_.world.device, numbers);
}

std::optional<at::Tensor> TrainingStep::ForwardBackward(Clock::time_point start) {
  const int64_t forwards = plan_.forwards;
  const int64_t every = forwards_per_poll();
  at::Tensor loss = body_.NoLoss();
  for (int64_t i = 0; i < forwards; ++i) {
    std::optional<Vote> vote;
    if (i > 0 && i % every == 0) {
      const bool must_abandon =
          context_.stop.MustAbandonStep(i, forwards, SecondsIn(Clock::now() - start));
      vote.emplace(context_.world, must_abandon ? kAbandonStep : kGoOn);
    }
    loss += body_.Backward(NextBatch(plan_.At(i)), /*is_last_forward=*/i + 1 == forwards);
    if (vote && vote->Highest() == kAbandonStep) {
      return std::nullopt;
    }
  }
  return body_.Tell(loss, NumbersToTell(SecondsIn(Clock::now() - start)));
}

StepOutcome TrainingStep::TakeRequests(const at::Tensor& told) {
  const auto value = [&told](Told which) { return told[which].item<float>(); };
  StepOutcome outcome;
  outcome.is_stopping = value(kToldStop) > 0;
  step_seconds_ = value(kToldSeconds);
  outcome.must_save = value(kToldSave) > 0;
  outcome.is_save_due = value(kToldDue) > 0;
  outcome.has_saved = checkpoints_.is_saving() && value(kToldWriting) == 0;
  if (value(kToldLost) > 0) {
    checkpoints_.GiveUpBegun();
  }
  return outcome;
}

StepOutcome TrainingStep::Do(bool is_traced) {
  // Of the phase before it may be minutes.
  StopSignal::SetTimeout(checkpoints_.StepTimeout());
  const Clock::time_point start = Clock::now();
  const TrainConfig& config = context_.config;
  const double factor = config.schedule.Factor(state_.step);
  state_.optimizer->SetRateFactor(factor);
  const DataCursor before = state_.cursor;
  state_.cursor = BeginBehind(state_.bad_data, state_.cursor,
                              [this](const DataCursor& cursor) { return EndOfStep(cursor); });
  StepMetrics metrics;
  metrics.step = state_.step + 1;
  metrics.lr = config.optimizer.lr * factor;
  DataRange data{state_.cursor, {}};

  counted_.BeginStep();
  first_batch_.reset();
  waited_before_ = batches_.waited_seconds();

  Issued issued{metrics, data, start, plan_.samples * config.data.seq_len};
  if (graph_ && is_traced) {
    graph_->Forget();
  }
  std::optional<at::Tensor> values;
  if (graph_ && graph_->IsReady()) {
    values = DoAsGraph(issued);
  } else if (const std::optional<at::Tensor> told = ForwardBackward(Clock::now())) {
    values = Update(*told, issued);
  }
  if (!values) {
    return Abandon(before);
  }
  Note(*values, std::move(issued));
  return Read(lateness_);
}

std::optional<at::Tensor> TrainingStep::DoAsGraph(Issued& issued) {
  if (!graph_->IsCaptured()) {
    // Captured, a step takes longer.
    StopSignal::SetTimeout(std::max<std::chrono::milliseconds>(
        checkpoints_.StepTimeout(),
        std::chrono::ceil<std::chrono::milliseconds>(StopPlan::kUnknownStep)));
  }
  context_.vitals.Enter(contract::WorkerPhase::kForward);
  if (step_seconds_ >= kLongStepSeconds) {
    Vote vote(context_.world, context_.stop.IsRequested() ? kAbandonStep : kGoOn);
    if (vote.Highest() == kAbandonStep) {
      return std::nullopt;
    }
  }
  std::vector<WeighedBatch> batches;
  for (int64_t i = 0; i < plan_.forwards; ++i) {
    batches.push_back(NextBatch(plan_.At(i)));
  }
  context_.vitals.Enter(contract::WorkerPhase::kForward);
  if (checkpoints_.MayCopy()) {
    // Before the copy is waited for, as in Update.
    Vote lost(context_.world, checkpoints_.HasLostTheWay() ? 1 : 0);
    if (lost.Highest() > 0) {
      checkpoints_.GiveUpBegun();
    }
    issued.waited = checkpoints_.AwaitCopy();
  }
  return graph_->Do(batches, NumbersToTell(read_seconds_));
}

StepOutcome TrainingStep::Abandon(const DataCursor& cursor) {
  const int64_t step = state_.step + 1;
  state_.optimizer->ZeroGrad();
  state_.cursor = cursor;
  StepOutcome outcome = Flush();
  outcome.is_stopping = true;
  const bool was_begun = !graph_ || !graph_->IsReady();
  context_.report.Event("step " + std::to_string(step) +
                        (was_begun ? " was left unfinished: its end does not fit into the grace of "
                                     "the stop"
                                   : " was not begun, because of the stop"));
  return outcome;
}

at::Tensor TrainingStep::Update(const at::Tensor& told, Issued& issued) {
  const StepBody::Judged judged = body_.Judge(told);
  if (lateness_ == 0 || checkpoints_.MayCopy()) {
    // A save that a rank has lost the way of must be given up before its copy is waited for.
    issued.asked = TakeRequests(told.cpu());
  }
  issued.waited = checkpoints_.AwaitCopy();
  const at::Tensor values = body_.Update(told, judged);
  if (graph_) {
    graph_->NoteStep();
  }
  return values;
}

void TrainingStep::Note(const at::Tensor& values, Issued issued) {
  state_.cursor =
      plan_.is_even ? state_.cursor : batches_.Behind(issued.data.begin, /*samples=*/plan_.samples);
  issued.data.end = state_.cursor;
  issued.metrics.data_wait_seconds = batches_.waited_seconds() - waited_before_;
  state_.step = issued.metrics.step;
  state_.tokens += issued.tokens;
  issued.metrics.tokens = state_.tokens;
  issued.values.emplace(values);
  issued_.push_back(std::move(issued));
}

StepOutcome TrainingStep::Flush() {
  StepOutcome outcome = Read(/*kept=*/0);
  read_at_.reset();  // what comes now is no part of a step
  if (!outcome.bad_step) {
    state_.judged = body_.judge().Steps();
  }
  return outcome;
}

void TrainingStep::GoOnFromState() {
  issued_.clear();
  read_at_.reset();
  body_.judge().Restore(state_.judged);
  if (graph_) {
    graph_->Forget();
  }
}

StepOutcome TrainingStep::Read(size_t kept) {
  StepOutcome outcome;
  // What follows a step that the run goes back before was not updated with, and is done again.
  while (issued_.size() > (outcome.bad_step ? 0 : kept)) {
    Issued issued = std::move(issued_.front());
    issued_.pop_front();
    const bool is_undone = outcome.bad_step.has_value();
    outcome.Add(ReadOne(issued, is_undone));
  }
  return outcome;
}

StepOutcome TrainingStep::ReadOne(Issued& issued, bool is_undone) {
  const at::Tensor& values = issued.values->Get();
  // Else they may be what was in memory when the group failed.
  context_.world.group->check_results("what step " + std::to_string(issued.metrics.step) +
                                      " has given");
  StepOutcome outcome = issued.asked ? *issued.asked : TakeRequests(values);
  if (is_undone) {
    return outcome;
  }
  StepMetrics& metrics = issued.metrics;
  metrics.loss = values[kToldLoss].item<float>();
  metrics.grad_norm = values[kToldNorm].item<float>();
  TakeTime(issued);
  const auto verdict = static_cast<Verdict>(std::lround(values[kToldVerdict].item<float>()));
  const StepAction action = bad_steps_.Note(verdict);
  if (action == StepAction::kStop) {
    Diverge(Describe(verdict, metrics, context_.config.train), metrics, bad_steps_.why());
  }
  metrics.is_skipped = action != StepAction::kGoOn;
  Report(metrics);
  last_data_ = issued.data;
  if (action == StepAction::kSkip) {
    FaultNotice each;
    context_.report.Warn(
        each, metrics.step,
        Describe(verdict, metrics, context_.config.train) +
            "; the weights were not updated, and training goes on with the next step");
  } else if (action == StepAction::kRollBack) {
    outcome.bad_step = {metrics.step, issued.data,
                        Describe(verdict, metrics, context_.config.train)};
  }
  return outcome;
}

std::optional<BadStep> TrainingStep::BlameLastStep(const std::string& what) {
  if (context_.config.train.on_nonfinite != "rollback") {
    return std::nullopt;
  }
  if (bad_steps_.Note(Verdict::kNonFinite) == StepAction::kStop) {
    throw DivergedError(what + bad_steps_.why());
  }
  return BadStep{state_.step, last_data_, what};
}

void TrainingStep::TakeTime(Issued& issued) {
  const Clock::time_point now = Clock::now();
  const Clock::time_point start = lateness_ > 0 && read_at_ ? *read_at_ : issued.start;
  read_at_ = now;
  issued.metrics.step_seconds = read_seconds_ = SecondsIn(now - start);
  issued.metrics.tokens_per_second =
      static_cast<double>(issued.tokens) / issued.metrics.step_seconds;
  context_.stop.NoteStep(now - start - issued.waited);
}

void TrainingStep::Report(const StepMetrics& metrics) {
  const DeviceMemory memory = MemoryOf(context_.world.device);
  if (std::isfinite(metrics.loss)) {
    context_.vitals.SetResults(
        {metrics.loss, metrics.tokens_per_second, metrics.tokens, memory.bytes, memory.peak_bytes});
  }
  StepMetrics reported = metrics;
  reported.memory_bytes = PeakMemoryBytes(context_.world.device);
  context_.report.Step(reported);
}

}  // namespace fsdprun::worker
