// The start of a run: checks of the input, the job, weights new or from a checkpoint.
#include <fsdp/activation_checkpoint.h>
#include <fsdp/counters.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "formats/checkpoint/file_system.h"
#include "fsdp_runtime/vitals/own_vitals.h"
#include "worker/data/stream_digest.h"
#include "worker/data/token_stream.h"
#include "worker/train/agreement.h"
#include "worker/train/failure.h"
#include "worker/train/stoppable_file_system.h"
#include "worker/train/trainer.h"
#include "worker/train/training_state.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMaxStepTokens = int64_t{1} << 40;

ProgressView ChooseView(const WorkerEnvironment& environment) {
  if (environment.rank != 0) {
    return ProgressView::kNone;
  }
  if (environment.launcher_draws_progress) {
    return ProgressView::kLauncher;
  }
  return isatty(STDOUT_FILENO) == 1 ? ProgressView::kTerminal : ProgressView::kPlain;
}

std::shared_ptr<const TokenStream> OpenStream(const char* key,
                                              const std::vector<std::string>& paths,
                                              int64_t seq_len) {
  auto stream = std::make_shared<const TokenStream>(paths);
  if (stream->window_count(seq_len) == 0) {
    throw ConfigError(std::string(key) + ": the text has " + std::to_string(stream->size()) +
                      " bytes, one window needs data.seq_len + 1 = " + std::to_string(seq_len + 1) +
                      "; give more text or a shorter data.seq_len");
  }
  return stream;
}

/// As a ConfigError, because a restart would fail again.
[[noreturn]] void RefuseCheckpoint(const checkpoint::Candidate& candidate,
                                   const std::exception& error) {
  throw ConfigError("cannot resume from " + candidate.path + ": " + error.what() +
                    "; choose another checkpoint.dir or set checkpoint.resume");
}

/// Runs a check at the start and turns its Error into one that ends the job for good, unless it may
/// pass: a full disk may be full of a killed run's unfinished checkpoint, which the Saver removes.
/// What has not passed by then fails there, and a restart tries again.
template <typename Error, typename Check>
void RefuseForGood(Check&& check) {
  try {
    check();
  } catch (const Error& error) {
    if (!checkpoint::MayPass(error.error_number())) {
      throw ConfigError(error.what());
    }
  }
}

}  // namespace

Trainer::Trainer(const Json& resolved, const WorkerEnvironment& environment,
                 ControlChannel& channel)
    : config_(ParseConfig(resolved)),
      resolved_(resolved),
      channel_(channel),
      vitals_(fsdp::own_vitals(), fsdp::collective_wait_time) {
  vitals_.Enter(contract::WorkerPhase::kStarting);
  vitals_.SetTotal(config_.train.steps);
  llama_ = ReadLlamaConfig(config_.model.config);
  CheckInput(environment);
  const int64_t seq_len = config_.data.seq_len;
  auto stream = OpenStream("data.train", config_.data.train, seq_len);
  if (config_.train.eval_every > 0) {
    valid_ = OpenStream("data.valid", config_.data.valid, seq_len);
  }
  SetThreads(environment.world_size);
  progress_ = std::make_unique<Progress>(ChooseView(environment), config_.train.steps,
                                         config_.metrics.every_steps, channel_);
  progress_->Event("configuration: " + resolved_.dump());

  const auto kept_claim = KeepClaim(environment.rank, environment.job_id);
  job_ = JoinRanks(config_);
  RequireAgreement(DescribeInput(resolved_, llama_, *stream, valid_.get()), CheckpointGroup());
  if (!config_.checkpoint.dir.empty()) {
    RequireSharedDirectory(config_.checkpoint.dir, CheckpointGroup());
  }
  ShardModel(config_, llama_, job_);
  train_ = std::move(stream);
  data_record_ = RecordData(*train_, config_.data);
  run_record_ = RecordRun(llama_, resolved_, job_.world_size());
  batches_.emplace(train_, BatchOptions{seq_len, config_.data.shuffle, config_.data.seed,
                                        job_.rank(), job_.world_size(), job_.device});
  MakeOptimizer();
  const LaunchIdentity identity = IdentifyLaunch(environment, CheckpointGroup());
  const auto kept_claim_under_torchrun =
      kept_claim ? nullptr : KeepClaim(environment.rank, identity.launch.job_id);
  Claim(identity, environment.generation);
  if (job_.rank() == 0) {
    metrics_ = std::make_unique<MetricsLog>(
        MetricsLog::Later{}, config_.metrics.jsonl, step_,
        MetricsOrigin{run_, identity.launch.job_id, environment.generation});
    Record("");
  }
}

// Note [Claim last]
// A start that fails on its model or its configuration must not disturb who uses checkpoint.dir, so
// the directory is claimed once everything else has succeeded. Until then its holder may save: what
// was loaded is then not the newest, and is loaded again. A restart renews the claim of its launch
// until then.
std::unique_ptr<checkpoint::ClaimPulse> Trainer::KeepClaim(int rank,
                                                           const std::string& job_id) const {
  const std::string& dir = config_.checkpoint.dir;
  return rank != 0 || dir.empty() || job_id.empty() ? nullptr : checkpoint::KeepClaim(dir, job_id);
}

void Trainer::Claim(const LaunchIdentity& identity, uint64_t generation) {
  const TrainConfig::Checkpoint& config = config_.checkpoint;
  if (config.dir.empty()) {
    Resume(identity);
    return;
  }
  const int64_t publications = checkpoint::CountPublications(config.dir, CheckpointGroup());
  Resume(identity);
  CheckSavedNames();
  checkpoint::SaverOptions options;
  options.dir = config.dir;
  options.keep = config.keep;
  options.group = CheckpointGroup();
  options.file_system = std::make_shared<StoppableFileSystem>([this] { return MustGiveUpSave(); });
  options.generation = generation;
  options.job_id = identity.launch.job_id;
  options.claim_timeout =
      std::chrono::milliseconds(std::llround(1000 * config.claim_timeout_seconds));
  // A restart whose directory was taken must not take it back, and so on for ever.
  options.takes_over = config.takeover && !identity.launch.is_restart;
  may_be_restarted_ = !identity.launch.job_id.empty();
  saver_ = std::make_unique<checkpoint::Saver>(std::move(options));
  if (checkpoint::CountPublications(config.dir, CheckpointGroup()) != publications) {
    Resume(identity);
    CheckSavedNames();
  }
}

void Trainer::CheckInput(const WorkerEnvironment& environment) {
  if (llama_.vocab_size < kByteTokens) {
    throw ConfigError(config_.model.config + ": vocab_size = " + std::to_string(llama_.vocab_size) +
                      ": expected at least 256 for data.tokenizer \"byte\"");
  }
  if (config_.data.seq_len > llama_.max_position_embeddings) {
    throw ConfigError("configuration: data.seq_len = " + std::to_string(config_.data.seq_len) +
                      ": expected at most the model's max_position_embeddings = " +
                      std::to_string(llama_.max_position_embeddings));
  }
  int64_t step_tokens = config_.data.seq_len;
  for (const int64_t factor : {config_.train.micro_batch_size, config_.train.grad_accumulation,
                               int64_t{environment.world_size}}) {
    if (step_tokens > kMaxStepTokens / factor) {
      throw ConfigError(
          "configuration: train.micro_batch_size * train.grad_accumulation * data.seq_len * ranks: "
          "expected at most 2^40 tokens per step");
    }
    step_tokens *= factor;
  }
  if (config_.train.eval_every > 0 && config_.data.valid.empty()) {
    throw ConfigError(
        "configuration: data.valid = []: expected at least one path, because "
        "train.eval_every is not 0");
  }
  if (environment.rank != 0) {
    return;
  }
  RefuseForGood<MetricsError>([&] { MetricsLog::CheckWritable(config_.metrics.jsonl); });
  if (!config_.checkpoint.dir.empty()) {
    RefuseForGood<checkpoint::CheckpointError>(
        [&] { checkpoint::CheckWritable(config_.checkpoint.dir); });
  }
}

void Trainer::MakeOptimizer() {
  if (config_.train.activation_checkpointing) {
    job_.model->SetBlockCall([](const fsdp::Unit<LlamaBlock>& block, const at::Tensor& x,
                                const at::Tensor& cos, const at::Tensor& sin) {
      return fsdp::activation_checkpoint(
          [block](const at::Tensor& x_again, const at::Tensor& cos_again,
                  const at::Tensor& sin_again) { return block(x_again, cos_again, sin_again); },
          x, cos, sin);
    });
  }
  const TrainConfig::Optimizer& options = config_.optimizer;
  const auto parameters = job_.root.sharded_parameters();
  for (const std::string& pattern : options.no_decay) {
    const bool is_used = std::any_of(parameters.begin(), parameters.end(), [&](const auto& slice) {
      return MatchesPattern(slice.fqn, pattern);
    });
    if (!is_used) {
      throw ConfigError("configuration: optimizer.no_decay has \"" + pattern +
                        "\": expected a pattern that matches a parameter, e.g. \"" +
                        parameters.back().fqn + "\"");
    }
  }
  const fsdp::AdamWOptions defaults{options.lr, options.beta1, options.beta2, options.eps,
                                    options.weight_decay};
  optimizer_ = std::make_unique<fsdp::AdamW>(job_.root, MakeParamGroups(job_, options), defaults);
}

// Note [Own checkpoints first]
// A restart runs with the configuration of the first start. If checkpoint.resume is "none" or a
// path, following it literally would discard this launch's progress; so the launch's own
// checkpoints, of which the first start finds none, take precedence. If they cannot be read, the
// job ends: starting over would silently do all its steps again. So it does where a restart cannot
// tell which checkpoints are its launch's own.
std::optional<checkpoint::Candidate> Trainer::FindCandidate(const LaunchIdentity& identity) const {
  const std::string& dir = config_.checkpoint.dir;
  const std::string& resume = config_.checkpoint.resume;
  if (!dir.empty()) {
    if (identity.has_lost_track && resume != "auto") {
      throw ConfigError("checkpoint.resume is " + Excerpt(resume) +
                        ", but this is a restart, and its launcher does not let it tell which "
                        "checkpoints this launch has written; set checkpoint.resume to auto");
    }
    if (auto own = checkpoint::FindOfJob(dir, identity.launch, CheckpointGroup())) {
      return own;
    }
  }
  if (resume == "none" || (resume == "auto" && dir.empty())) {
    return std::nullopt;
  }
  try {
    return checkpoint::FindResume(dir, resume, CheckpointGroup());
  } catch (const checkpoint::CheckpointError& error) {
    if (resume == "auto" || checkpoint::MayPass(error.error_number())) {
      throw;
    }
    // The user named this checkpoint; a restart would fail again.
    throw ConfigError(std::string("checkpoint.resume: ") + error.what() +
                      "; give another path, or auto or none");
  }
}

void Trainer::Resume(const LaunchIdentity& identity) {
  at::manual_seed(config_.model.seed);
  const auto load = [this](const checkpoint::Candidate& candidate) {
    try {
      LoadState(candidate);
    } catch (const checkpoint::MismatchError& error) {
      RefuseCheckpoint(candidate, error);
    } catch (const ConfigError& error) {
      RefuseCheckpoint(candidate, error);
    }
  };
  if (checkpoint::LoadChosen(
          CheckpointGroup(), [&] { return FindCandidate(identity); }, load)) {
    return;
  }
  if (saved_step_ >= 0) {  // the optimizer and the steps are those of what was loaded before
    throw checkpoint::CheckpointError("cannot resume: the checkpoint of step " +
                                      std::to_string(saved_step_) +
                                      " was removed after it was loaded, and there is no other");
  }
  run_ = checkpoint::NewRun(CheckpointGroup());
  FillWeights(config_, job_);
  progress_->Event("starting at step 0: " + std::to_string(ParameterCount(llama_)) +
                   " parameters on " + std::to_string(job_.world_size()) + " ranks (" +
                   job_.group->name() + "), " + std::to_string(batches_->window_count()) +
                   " windows of " + std::to_string(config_.data.seq_len) + " tokens");
}

void Trainer::LoadState(const checkpoint::Candidate& candidate) {
  const Vitals::Within phase(vitals_, contract::WorkerPhase::kLoading);
  const at::Tensor steps = CaptureSteps(*optimizer_);
  checkpoint::State state = CheckpointTensors(job_, *optimizer_, steps);
  checkpoint::Load(candidate, state, CheckpointGroup());
  const TrainingState training = ParseTrainingState(state.training_state_json);
  run_ = candidate.run.empty() ? checkpoint::NewRun(CheckpointGroup()) : candidate.run;
  step_ = training.step;
  tokens_ = training.tokens;
  saved_step_ = step_;
  // Older versions did not leave an evaluation unfinished.
  evaluated_step_ = training.evaluated_step.value_or(-1);
  must_evaluate_first_ = training.evaluated_step && config_.train.eval_every > 0 && step_ > 0 &&
                         step_ % config_.train.eval_every == 0;
  RestoreSteps(steps, *optimizer_);
  TellChanges(training, state.param_groups_json);
  RestoreRng(training.rng);
  batches_->set_cursor(ResumedCursor(training));
  progress_->Event("resuming after step " + std::to_string(step_) + " from " + candidate.path +
                   " (written by " + std::to_string(candidate.world_size) + " ranks, now " +
                   std::to_string(job_.world_size()) + ")");
}

checkpoint::Group Trainer::CheckpointGroup() const {
  return {job_.group, job_.device, nullptr, saved_steps_};
}

void Trainer::TellChanges(const TrainingState& training,
                          const std::string& param_groups_json) const {
  if (training.run) {
    for (const RunChange& change : CompareRuns(*training.run, run_record_)) {
      if (change.is_other_model && config_.model.on_change == "refuse") {
        throw ConfigError(change.text +
                          ", so its weights would compute something else; set it back, or set "
                          "model.on_change to warn to continue with it");
      }
      progress_->Event("warning: " + change.text);
    }
  }
  for (const std::string& change :
       DescribeChangedGroups(param_groups_json, FormatParamGroups(job_, config_.optimizer, 0))) {
    progress_->Event("warning: " + change);
  }
  if (training.step > config_.train.steps) {
    progress_->Event("warning: train.steps is " + std::to_string(config_.train.steps) +
                     ", and the checkpoint has done " + std::to_string(training.step) +
                     " steps already: nothing is left to train");
  }
}

DataCursor Trainer::ResumedCursor(const TrainingState& training) const {
  if (!training.data) {
    progress_->Event(
        "warning: the checkpoint does not say which data it was trained on (an older fsdp-train "
        "wrote it), " +
        std::to_string(training.windows) + " windows of them; there are " +
        std::to_string(batches_->window_count()) +
        " windows now; continuing at the same position of the same epoch");
    return training.cursor;
  }
  const DataRecord& before = *training.data;
  const std::string same_part =
      before.bytes <= train_->size() ? SampledDigest(*train_, before.bytes) : std::string();
  for (const DataChange& change : CompareData(before, data_record_, same_part, training.cursor)) {
    if (change.loses_position && config_.data.on_change == "refuse") {
      throw ConfigError(change.text +
                        "; set it back, or set data.on_change to warn to continue after as many "
                        "tokens of the epoch");
    }
    progress_->Event("warning: " + change.text);
  }
  return ConvertCursor(training.cursor, before.seq_len, data_record_.seq_len);
}

/// Of a directory in the way the user hears now rather than after hours of training.
void Trainer::CheckSavedNames() const {
  if (job_.rank() != 0) {
    return;
  }
  const std::optional<int64_t> done =
      saved_step_ < 0 ? std::nullopt : std::optional<int64_t>(saved_step_);
  RefuseForGood<checkpoint::CheckpointError>([&] {
    checkpoint::CheckReplaceable(config_.checkpoint.dir, run_,
                                 [&](int64_t step) { return WillSave(config_, done, step); });
  });
}

}  // namespace fsdprun::worker
