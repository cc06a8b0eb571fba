#include "worker/run/resume.h"

#include <ATen/Context.h>

#include <exception>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "worker/data/stream_digest.h"
#include "worker/run/optimizer_groups.h"
#include "worker/run/random_state.h"

namespace fsdprun::worker {
namespace {

/// As a ConfigError, because a restart would fail again.
[[noreturn]] void RefuseCheckpoint(const checkpoint::Candidate& candidate,
                                   const std::exception& error) {
  throw ConfigError("cannot resume from " + candidate.path + ": " + error.what() +
                    "; choose another checkpoint.dir or set checkpoint.resume");
}

}  // namespace

Resumer::Resumer(const RunContext& context, checkpoint::Group group, LaunchIdentity identity,
                 const TrainBatches& batches, RunState& state)
    : context_(context),
      group_(std::move(group)),
      identity_(std::move(identity)),
      batches_(batches),
      state_(state) {}

std::optional<int64_t> Resumer::Resume() {
  at::manual_seed(context_.config.model.seed);
  const auto load = [this](const checkpoint::Candidate& candidate) {
    try {
      Load(candidate);
    } catch (const checkpoint::MismatchError& error) {
      RefuseCheckpoint(candidate, error);
    } catch (const ConfigError& error) {
      RefuseCheckpoint(candidate, error);
    }
  };
  if (checkpoint::LoadChosen(
          group_, [&] { return FindCandidate(); }, load)) {
    return loaded_step_;
  }
  if (loaded_step_) {  // the optimizer and the steps are those of what was loaded before
    throw checkpoint::CheckpointError("cannot resume: the checkpoint of step " +
                                      std::to_string(*loaded_step_) +
                                      " was removed after it was loaded, and there is no other");
  }
  StartAnew();
  return std::nullopt;
}

// Note [Own checkpoints first]
// A restart runs with the configuration of the first start. If checkpoint.resume is "none" or a
// path, following it literally would discard this launch's progress; so the launch's own
// checkpoints, of which the first start finds none, take precedence. If they cannot be read, the
// job ends: starting over would silently do all its steps again. So it does where a restart cannot
// tell which checkpoints are its launch's own.
std::optional<checkpoint::Candidate> Resumer::FindCandidate() const {
  const std::string& dir = context_.config.checkpoint.dir;
  const std::string& resume = context_.config.checkpoint.resume;
  if (dir.empty()) {
    return FindNamed();
  }
  if (identity_.has_lost_track && resume != "auto") {
    throw ConfigError("checkpoint.resume is " + Excerpt(resume) +
                      ", but this is a restart, and its launcher does not let it tell which "
                      "checkpoints this launch has written; set checkpoint.resume to auto");
  }
  if (auto own = checkpoint::FindOfJob(dir, identity_.launch, group_)) {
    return own;
  }
  return FindNamed();
}

/// What checkpoint.resume says.
std::optional<checkpoint::Candidate> Resumer::FindNamed() const {
  const std::string& dir = context_.config.checkpoint.dir;
  const std::string& resume = context_.config.checkpoint.resume;
  if (resume == "none" || (resume == "auto" && dir.empty())) {
    return std::nullopt;
  }
  try {
    return checkpoint::FindResume(dir, resume, group_);
  } catch (const checkpoint::CheckpointError& error) {
    if (resume == "auto" || checkpoint::MayPass(error.error_number())) {
      throw;
    }
    // The user named this checkpoint; a restart would fail again.
    throw ConfigError(std::string("checkpoint.resume: ") + error.what() +
                      "; give another path, or auto or none");
  }
}

void Resumer::StartAnew() {
  state_.run = checkpoint::NewRun(group_);
  FillWeights(context_.config, state_.model);
  context_.report.Event(
      "starting at step 0: " + std::to_string(ParameterCount(state_.model.module->config())) +
      " parameters on " + std::to_string(context_.world.size()) + " ranks (" +
      context_.world.group->name() + "), " + std::to_string(state_.windows) + " windows of " +
      std::to_string(context_.config.data.seq_len) + " tokens");
}

void Resumer::Load(const checkpoint::Candidate& candidate) {
  const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kLoading);
  const at::Tensor steps = CaptureSteps(*state_.optimizer);
  checkpoint::State stored = CheckpointTensors(state_.model, *state_.optimizer, steps);
  checkpoint::Load(candidate, stored, group_);
  const TrainingState training = ParseTrainingState(stored.training_state_json);
  state_.run = candidate.run.empty() ? checkpoint::NewRun(group_) : candidate.run;
  state_.step = training.step;
  state_.tokens = training.tokens;
  loaded_step_ = training.step;
  // Older versions did not leave an evaluation unfinished.
  state_.evaluated_step = training.evaluated_step.value_or(-1);
  const int64_t every = context_.config.train.eval_every;
  owes_evaluation_ =
      training.evaluated_step && every > 0 && training.step > 0 && training.step % every == 0;
  RestoreSteps(steps, *state_.optimizer);
  TellChanges(training, stored.param_groups_json);
  RestoreRng(training.rng);
  state_.cursor = batches_.Normalize(ResumedCursor(training));
  context_.report.Event("resuming after step " + std::to_string(state_.step) + " from " +
                        candidate.path + " (written by " + std::to_string(candidate.world_size) +
                        " ranks, now " + std::to_string(context_.world.size()) + ")");
}

void Resumer::TellChanges(const TrainingState& training,
                          const std::string& param_groups_json) const {
  const TrainConfig& config = context_.config;
  if (training.run) {
    for (const RunChange& change : CompareRuns(*training.run, state_.record)) {
      if (change.is_other_model && config.model.on_change == "refuse") {
        throw ConfigError(change.text +
                          ", so its weights would compute something else; set it back, or set "
                          "model.on_change to warn to continue with it");
      }
      context_.report.Event("warning: " + change.text);
    }
  }
  const std::string groups = FormatParamGroups(state_.model.root, config.optimizer, 0);
  for (const std::string& change : DescribeChangedGroups(param_groups_json, groups)) {
    context_.report.Event("warning: " + change);
  }
  if (training.step > config.train.steps) {
    context_.report.Event("warning: train.steps is " + std::to_string(config.train.steps) +
                          ", and the checkpoint has done " + std::to_string(training.step) +
                          " steps already: nothing is left to train");
  }
}

DataCursor Resumer::ResumedCursor(const TrainingState& training) const {
  if (!training.data) {
    context_.report.Event(
        "warning: the checkpoint does not say which data it was trained on (an older fsdp-train "
        "wrote it), " +
        std::to_string(training.windows) + " windows of them; there are " +
        std::to_string(state_.windows) +
        " windows now; continuing at the same position of the same epoch");
    return training.cursor;
  }
  const DataRecord& before = *training.data;
  const TokenStream& stream = batches_.stream();
  const std::string same_part =
      before.bytes <= stream.size() ? SampledDigest(stream, before.bytes) : std::string();
  for (const DataChange& change : CompareData(before, state_.data, same_part, training.cursor)) {
    if (change.loses_position && context_.config.data.on_change == "refuse") {
      throw ConfigError(change.text +
                        "; set it back, or set data.on_change to warn to continue after as many "
                        "tokens of the epoch");
    }
    context_.report.Event("warning: " + change.text);
  }
  return ConvertCursor(training.cursor, before.seq_len, state_.data.seq_len);
}

}  // namespace fsdprun::worker
