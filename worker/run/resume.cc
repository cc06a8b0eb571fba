#include "worker/run/resume.h"

#include <ATen/Context.h>

#include <filesystem>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "worker/batch/step_plan.h"
#include "worker/checkpoint/resume.h"
#include "worker/run/frozen_base.h"
#include "worker/run/optimizer_groups.h"
#include "worker/run/random_state.h"

namespace fsdprun::worker {
namespace {

// The load verifies what it reads.
constexpr checkpoint::Verify kVerify = checkpoint::Verify::kStructure;

/// Of the base of adapters, which their checkpoint does not have.
class BaseError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// ", of which 5 are trained"; nothing if all are.
std::string TrainedText(const ShardedModel& model) {
  if (model.frozen.empty()) {
    return "";
  }
  int64_t count = 0;
  for (const fsdp::LocalShard& parameter : TrainedParameters(model)) {
    int64_t elements = 1;
    for (const int64_t size : parameter.global_shape) {
      elements *= size;
    }
    count += elements;
  }
  return (model.has_adapters ? " and " : ", of which ") + std::to_string(count) +
         (model.has_adapters ? " of adapters, which alone are trained," : " are trained,");
}

std::string DtypeOfFrozen(const ShardedModel& model) {
  for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
    if (model.frozen.contains(parameter.fqn) && parameter.local.scalar_type() == at::kBFloat16) {
      return "bfloat16";
    }
  }
  return "float32";
}

}  // namespace

bool IsCheckpointIn(const std::string& path, const std::string& dir) {
  const auto normal = [](const std::string& name) {
    return (std::filesystem::path(name) / "").lexically_normal();
  };
  return !dir.empty() && normal(path).parent_path().parent_path() == normal(dir).parent_path();
}

std::optional<checkpoint::Candidate> FindToResume(const TrainConfig::Checkpoint& config,
                                                  const checkpoint::Group& group,
                                                  const checkpoint::Unloadable& unloadable) {
  const std::string& resume = config.resume;
  if (resume == "none" || (resume == "auto" && config.dir.empty())) {
    return std::nullopt;
  }
  try {
    return checkpoint::FindResume(config.dir, resume, group, kVerify, unloadable);
  } catch (const checkpoint::CheckpointError& error) {
    if (resume == "auto" || checkpoint::MayPass(error.error_number())) {
      throw;
    }
    // The user named this checkpoint; a restart would fail again.
    throw ConfigError(std::string("checkpoint.resume: ") + error.what() +
                      "; give another path, or auto or none");
  }
}

std::string HintAt(std::string_view mismatch) {
  const auto is_of = [&](const char* name) {
    return mismatch.find(name) != std::string_view::npos;
  };
  if (!is_of("optim.state.")) {
    return "";
  }
  return is_of(".momentum_buffer")
             ? "; was it trained with another optimizer.name, or without optimizer.momentum?"
             : "; was it trained with another optimizer.name?";
}

void RefuseCheckpoint(const checkpoint::Candidate& candidate, const std::string& why) {
  throw ConfigError("cannot resume from " + candidate.path + ": " + why + HintAt(why) +
                    "; choose another checkpoint.dir or set checkpoint.resume");
}

Resumer::Resumer(const RunContext& context, checkpoint::Group group, LaunchIdentity identity,
                 const TrainBatches& batches, RunState& state)
    : context_(context),
      group_(std::move(group)),
      identity_(std::move(identity)),
      batches_(batches),
      state_(state) {}

std::optional<checkpoint::Candidate> Resumer::LoadChosen(const Find& find) {
  at::manual_seed(context_.config.model.seed);
  const auto load = [this](const checkpoint::Candidate& candidate) {
    try {
      Load(candidate);
    } catch (const checkpoint::MismatchError& error) {
      // Which keys are missing says less than why.
      const std::optional<RunRecord> before = RecordOf(candidate);
      RefuseCheckpoint(candidate, before ? DescribeMismatch(*before, state_.record, error.what())
                                         : error.what());
    } catch (const BaseError&) {
      throw;  // another checkpoint, or none, would lose what this one has
    } catch (const ConfigError& error) {
      RefuseCheckpoint(candidate, error.what());
    }
  };
  return checkpoint::LoadChosen(group_, find, load);
}

std::optional<int64_t> Resumer::StepOf(const checkpoint::Candidate& loaded) const {
  return IsCheckpointIn(loaded.path, context_.config.checkpoint.dir) ? loaded_step_ : std::nullopt;
}

std::optional<Resumer::Place> Resumer::RollBack(const std::set<int64_t>& steps, int64_t step_max) {
  const std::string& dir = context_.config.checkpoint.dir;
  const checkpoint::OfRun wanted{state_.run, steps, step_max};
  const auto loaded = LoadChosen(
      [&](const checkpoint::Unloadable& unloadable) -> std::optional<checkpoint::Candidate> {
        if (!dir.empty()) {
          if (auto own = checkpoint::FindOfRun(dir, wanted, group_, kVerify, unloadable)) {
            return own;
          }
        }
        return start_path_
                   ? std::optional(checkpoint::FindAt(*start_path_, group_, kVerify, unloadable))
                   : std::nullopt;
      });
  if (!loaded) {
    return std::nullopt;
  }
  state_.run = wanted.run;  // also where the checkpoint tells none
  return Place{StepOf(*loaded)};
}

std::optional<int64_t> Resumer::Resume() {
  const auto loaded = LoadChosen(
      [this](const checkpoint::Unloadable& unloadable) { return FindCandidate(unloadable); });
  if (loaded) {
    start_path_ = loaded->path;
    return StepOf(*loaded);
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
std::optional<checkpoint::Candidate> Resumer::FindCandidate(
    const checkpoint::Unloadable& unloadable) const {
  const std::string& dir = context_.config.checkpoint.dir;
  const std::string& resume = context_.config.checkpoint.resume;
  if (dir.empty()) {
    return FindToResume(context_.config.checkpoint, group_, unloadable);
  }
  if (identity_.has_lost_track && resume != "auto") {
    throw ConfigError("checkpoint.resume is " + Excerpt(resume) +
                      ", but this is a restart, and its launcher does not let it tell which "
                      "checkpoints this launch has written; set checkpoint.resume to auto");
  }
  if (auto own = checkpoint::FindOfJob(dir, identity_.launch, group_, kVerify, unloadable)) {
    return own;
  }
  return FindToResume(context_.config.checkpoint, group_, unloadable);
}

void Resumer::StartAnew() {
  state_.run = checkpoint::NewRun(group_);
  if (state_.model.has_adapters) {
    FillBase();
  } else {
    FillWeightsOnAll(context_.config, group_, state_.model);
  }
  context_.report.Event(
      "starting at step 0: " + std::to_string(ParameterCount(state_.model.module->config())) +
      " parameters" + TrainedText(state_.model) + " on " + std::to_string(context_.world.size()) +
      " ranks (" + context_.world.group->name() + "), " + std::to_string(state_.windows) +
      " windows of " + std::to_string(context_.config.data.seq_len) + " tokens");
}

void Resumer::FillBase() {
  if (!state_.record.adapters.contains(kBaseDigest)) {
    FillWeightsOnAll(context_.config, group_, state_.model);
    state_.record.adapters[kBaseDigest] = DigestOfBase(state_.model, context_.world);
    context_.report.Event("the base of the adapters is kept in " + DtypeOfFrozen(state_.model));
  }
}

void Resumer::FillBaseFor(const checkpoint::Candidate& candidate) {
  const std::optional<RunRecord> before = RecordOf(candidate);
  // Those that do not fit are refused before a base of any size is read.
  RunRecord now = state_.record;
  now.adapters.erase(kBaseDigest);
  if (before) {
    CheckAdapters(*before, now);
  }
  try {
    FillBase();
  } catch (const ConfigError& error) {
    throw BaseError("cannot resume from " + candidate.path +
                    ", which has adapters alone, because of their base: " + error.what() +
                    "; set model.weights to where the base is, if it was moved, or mend it");
  }
  if (before && !before->adapters.empty()) {
    now.adapters = Json::object();
    now.adapters[kBaseDigest] = state_.record.adapters.at(kBaseDigest);
    CheckAdapters(*before, now);
  }
}

std::optional<RunRecord> Resumer::RecordOf(const checkpoint::Candidate& candidate) const {
  checkpoint::State stored;
  stored.training_state_json.clear();
  checkpoint::LoadOptions options;
  options.may_lack_objects = true;
  checkpoint::Load(candidate, stored, group_, options);
  if (stored.training_state_json.empty()) {
    return std::nullopt;
  }
  return ParseTrainingState(stored.training_state_json).run.value_or(RunRecord{});
}

void Resumer::CheckAdapters(const RunRecord& before, const RunRecord& now) const {
  for (const std::string& text : CompareAdapters(before, now)) {
    if (context_.config.model.on_change == "refuse") {
      throw ConfigError(text + kOtherAdapters);
    }
    context_.report.Event("warning: " + text);
  }
}

void Resumer::Load(const checkpoint::Candidate& candidate) {
  const Vitals::Within phase(context_.vitals, contract::WorkerPhase::kLoading);
  if (state_.model.has_adapters) {
    FillBaseFor(candidate);
  }
  const at::Tensor steps = CaptureSteps(*state_.optimizer);
  checkpoint::State stored = CheckpointTensors(state_.model, *state_.optimizer, steps);
  stored.training_state_json.clear();
  checkpoint::LoadOptions options;
  options.may_lack_objects = true;
  checkpoint::Load(candidate, stored, group_, options);
  RestoreSteps(steps, *state_.optimizer);
  const bool is_foreign = stored.training_state_json.empty();
  const TrainingState training =
      is_foreign ? Derive(steps) : ParseTrainingState(stored.training_state_json);
  state_.run = candidate.run.empty() ? checkpoint::NewRun(group_) : candidate.run;
  TakeOver(training);
  TellChanges(training, stored.param_groups_json);
  state_.bad_data = training.bad_data;
  state_.judged = training.judged;
  if (training.data && training.data->seq_len != state_.data.seq_len) {
    state_.bad_data.clear();  // they are positions in windows of that length
  }
  state_.cursor = batches_.Normalize(is_foreign ? training.cursor : ResumedCursor(training));
  context_.report.Event("resuming after step " + std::to_string(state_.step) + " from " +
                        candidate.path + " (written by " + std::to_string(candidate.world_size) +
                        " ranks, now " + std::to_string(context_.world.size()) + ")");
  if (is_foreign) {
    TellDerived(training);
  }
}

void Resumer::TakeOver(const TrainingState& training) {
  state_.step = training.step;
  state_.tokens = training.tokens;
  loaded_step_ = training.step;
  // Older versions did not leave an evaluation unfinished.
  state_.evaluated_step = training.evaluated_step.value_or(-1);
  const int64_t every = context_.config.train.eval_every;
  owes_evaluation_ =
      training.evaluated_step && every > 0 && training.step > 0 && training.step % every == 0;
  if (!training.rng.empty()) {
    RestoreRng(training.rng);
  }
}

/// Of a checkpoint that says no more of its training than how often the optimizer has updated each
/// parameter. Those that were not used in every step have fewer.
TrainingState Resumer::Derive(const at::Tensor& steps) const {
  const TrainConfig& config = context_.config;
  const int64_t ranks = context_.world.size();
  const int64_t samples = StepSamples(config.train, ranks);
  TrainingState state =
      DeriveTrainingState(static_cast<int64_t>(steps.max().item<float>()),
                          {.samples = samples, .seq_len = config.data.seq_len}, state_.windows);
  state.cursor = samples % ranks == 0 ? batches_.CursorAfter(state.step * (samples / ranks))
                                      : batches_.Behind({}, state.step * samples);
  return state;
}

void Resumer::TellDerived(const TrainingState& training) const {
  context_.report.Event(
      "warning: the checkpoint has no train.state, because another program wrote it: the step is "
      "its optimizer's, and tokens (" +
      std::to_string(training.tokens) + ") and the position in the data (window " +
      std::to_string(training.cursor.offset) + " of epoch " +
      std::to_string(training.cursor.epoch) +
      ") are as if this configuration had done these steps; the random numbers start anew");
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
    const std::string decay = DescribeInterruptedDecay(*training.run, state_.record, training.step);
    if (!decay.empty()) {
      context_.report.Event("warning: " + decay);
    }
  }
  const std::string groups = FormatParamGroups(state_.model, config.optimizer, 0);
  for (const std::string& change : DescribeChangedGroups(param_groups_json, groups)) {
    context_.report.Event("warning: " + change);
  }
  if (training.step > config.train.steps) {
    context_.report.Event("warning: train.steps is " + std::to_string(config.train.steps) +
                          ", and the checkpoint has done " + std::to_string(training.step) +
                          " steps already: nothing is left to train");
  }
}

DataCursor Resumer::ResumedCursor(const TrainingState& training) {
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
  const TrainData& data = batches_.data();
  const std::string same_part =
      before.tokens <= data.size() ? data.Digest(before.tokens) : std::string();
  for (const DataChange& change : CompareData(before, state_.data, same_part, training.cursor)) {
    if (change.loses_position && context_.config.data.on_change == "refuse") {
      throw ConfigError(change.text +
                        "; set it back, or set data.on_change to warn to continue after as many "
                        "tokens of the epoch");
    }
    context_.report.Event("warning: " + change.text);
    if (change.loses_position) {
      state_.bad_data.clear();  // their positions are lost as well
    }
  }
  return ConvertCursor(training.cursor, before.seq_len, state_.data.seq_len);
}

}  // namespace fsdprun::worker
