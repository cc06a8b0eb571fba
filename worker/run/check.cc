#include "worker/run/check.h"

#include <fsdp/process_group.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/estimate/base_dtype.h"
#include "worker/estimate/estimate.h"
#include "worker/estimate/format_estimate.h"
#include "worker/estimate/run_estimate.h"
#include "worker/models/causal_lm.h"
#include "worker/run/data_record.h"
#include "worker/run/inputs.h"
#include "worker/run/refuse_for_good.h"
#include "worker/run/resume.h"
#include "worker/run/run_record.h"
#include "worker/run/run_state.h"
#include "worker/run/start_limit.h"
#include "worker/run/training_state.h"
#include "worker/weights/load_weights.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kLabelColumn = 14;

using WriteText = std::function<void(const std::string&)>;

std::string Labelled(const std::string& label, const std::string& text) {
  std::string line = label;
  line.resize(std::max(kLabelColumn, label.size() + 1), ' ');
  return line + text + "\n";
}

std::string Decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Names and shapes of the model's own weights, without adapters.
std::vector<fsdp::LocalShard> ShardsOfModel(const ModelConfig& model) {
  std::vector<fsdp::LocalShard> shards;
  for (const WeightShape& weight : model.weights) {
    fsdp::LocalShard shard;
    shard.fqn = weight.name;
    shard.global_shape = weight.shape;
    shards.push_back(std::move(shard));
  }
  return shards;
}

/// The module, whose parameters have no memory, has the weights that its description says.
void CheckModule(const RunInputs& inputs) {
  const std::shared_ptr<CausalLm> module =
      MakeCausalLm(inputs.model, LayerFactory{.device = at::kCPU,
                                              .is_unmaterialized = true,
                                              .kernels = inputs.config.model.has_fused_kernels
                                                             ? Kernels::kFused
                                                             : Kernels::kReference});
  int64_t count = 0;
  for (const at::Tensor& parameter : module->parameters()) {
    count += parameter.numel();
  }
  TORCH_INTERNAL_ASSERT(count == ParameterCount(inputs.model), "the model has ", count,
                        " parameters, and its description ", ParameterCount(inputs.model));
}

/// `is_resumed`: from a checkpoint, which has all weights but the base of adapters.
void CheckNamedWeights(const RunInputs& inputs, bool is_resumed) {
  const TrainConfig& config = inputs.config;
  const bool is_read = !is_resumed || config.lora.is_on();
  if (is_read && config.model.weights != "none") {
    CheckWeights(config.model.weights, ShardsOfModel(inputs.model), inputs.model.names);
  }
}

/// Where a run would go on.
struct Start {
  std::optional<checkpoint::Candidate> candidate;
  TrainingState training;
  /// What the checkpoint says of its run; unset: there is none, or another program has written it.
  std::optional<RunRecord> record;
  /// Sentences.
  std::vector<std::string> changes;
};

/// Whether the checkpoint has adapters that the run goes on with, and all that it needs.
void CheckKeysOfStart(const RunInputs& inputs, const checkpoint::Group& group, const RunRecord& now,
                      Start& start) {
  const std::optional<RunRecord>& before = start.record;
  if (before && inputs.config.lora.is_on()) {
    for (std::string& change : CompareAdapters(*before, now)) {
      if (inputs.config.model.on_change == "refuse") {
        RefuseCheckpoint(*start.candidate, change + kOtherAdapters);
      }
      start.changes.push_back(std::move(change));
    }
  }
  checkpoint::State keys = CheckpointKeys(inputs.config, inputs.model);
  checkpoint::LoadOptions options;
  options.may_lack_objects = true;
  try {
    checkpoint::Load(*start.candidate, keys, group, options);
  } catch (const checkpoint::MismatchError& error) {
    RefuseCheckpoint(*start.candidate,
                     before ? DescribeMismatch(*before, now, error.what()) : error.what());
  }
}

/// What has changed since the checkpoint; those changes that the run would refuse are errors.
void CompareStart(const RunInputs& inputs, const RunRecord& now, Start& start) {
  const TrainConfig& config = inputs.config;
  if (start.training.run) {
    for (const RunChange& change : CompareRuns(*start.training.run, now)) {
      if (change.is_other_model && config.model.on_change == "refuse") {
        RefuseCheckpoint(*start.candidate,
                         change.text +
                             ", so its weights would compute something else; set it back, or "
                             "set model.on_change to warn to continue with it");
      }
      start.changes.push_back(change.text);
    }
  }
  if (!start.training.data) {
    return;
  }
  const DataRecord& before = *start.training.data;
  const std::string same_part =
      before.tokens <= inputs.train->size() ? inputs.train->Digest(before.tokens) : std::string();
  for (const DataChange& change : CompareData(before, RecordData(*inputs.train, config.data),
                                              same_part, start.training.cursor)) {
    if (change.loses_position && config.data.on_change == "refuse") {
      RefuseCheckpoint(*start.candidate,
                       change.text +
                           "; set it back, or set data.on_change to warn to continue after as "
                           "many tokens of the epoch");
    }
    start.changes.push_back(change.text);
  }
}

Start FindStart(const RunInputs& inputs, int64_t ranks, const checkpoint::Group& group) {
  Start start{FindToResume(inputs.config.checkpoint, group), {}, {}, {}};
  if (start.candidate) {
    checkpoint::State stored;
    stored.training_state_json.clear();
    checkpoint::LoadOptions options;
    options.may_lack_objects = true;
    checkpoint::Load(*start.candidate, stored, group, options);
    const RunRecord now = RecordRun(inputs.model, inputs.resolved, ranks);
    if (stored.training_state_json.empty()) {
      start.training.step = start.candidate->step;
    } else {
      start.training = ParseTrainingState(stored.training_state_json);
      start.record = start.training.run.value_or(RunRecord{});
    }
    CheckKeysOfStart(inputs, group, now, start);
    CompareStart(inputs, now, start);
  }
  return start;
}

/// Applies what an earlier start has found out about memory. Returns what is to be told of it.
std::string LimitFor(const RunInputs& inputs, const WorkerEnvironment& environment,
                     const Start& start, int64_t ranks, const checkpoint::Group& group,
                     TrainConfig& limited) {
  const StartLimit found =
      FindStartLimit({inputs.config, inputs.resolved, inputs.model, ranks,
                      start.candidate ? start.candidate->run : "", environment.job_id},
                     group);
  return found.limit ? ApplyStartLimit(*found.limit, ranks, limited) : found.left_aside;
}

void CheckDirectory(const RunInputs& inputs, const WorkerEnvironment& environment,
                    const Start& start) {
  const TrainConfig& config = inputs.config;
  const std::string& dir = config.checkpoint.dir;
  if (dir.empty()) {
    return;
  }
  const bool is_of_directory = start.candidate && IsCheckpointIn(start.candidate->path, dir);
  const std::optional<int64_t> done =
      is_of_directory ? std::optional(start.training.step) : std::nullopt;
  const std::string run = start.candidate ? start.candidate->run : checkpoint::RandomId();
  RefuseForGood<checkpoint::CheckpointError>([&] {
    checkpoint::CheckReplaceable(dir, run,
                                 [&](int64_t step) { return WillSave(config, done, step); });
  });
  const auto timeout =
      std::chrono::milliseconds(std::llround(1000 * config.checkpoint.claim_timeout_seconds));
  checkpoint::AwaitClaimable(
      dir,
      {checkpoint::MakeClaim(environment.job_id, environment.generation, timeout), timeout,
       config.checkpoint.takeover},
      [](const std::string& text) { std::fprintf(stderr, "warning: %s\n", text.c_str()); });
}

std::string WeightsText(const TrainConfig::Model& model) {
  return model.weights == "none" ? "random weights (model.seed " + std::to_string(model.seed) + ")"
                                 : "weights of " + model.weights;
}

void TellModelAndData(const RunInputs& inputs, const Estimate& estimate, const std::string& stored,
                      const WriteText& write) {
  const TrainConfig& config = inputs.config;
  const std::string base =
      config.lora.is_on() ? ", and their base is kept in " + DtypeOfBase(config, stored) : "";
  write(Labelled("model", inputs.model.model_type + " of " + config.model.config + ", " +
                              std::to_string(estimate.parameters) + " parameters" +
                              (estimate.trainable == estimate.parameters
                                   ? ""
                                   : ", " + std::to_string(estimate.trainable) + " are trained") +
                              base + "; " + WeightsText(config.model)));
  const TrainData& data = *inputs.train;
  const auto tokenizer = data.tokenizer();
  write(Labelled("data", std::to_string(data.window_count()) + " windows of " +
                             std::to_string(config.data.seq_len) + " tokens, of " +
                             std::to_string(data.size()) +
                             (data.is_text() ? " bytes of text" : " tokens") +
                             (tokenizer ? " of a " + tokenizer->kind + " tokenizer" : "") +
                             (data.is_mixture() ? ", a mixture" : "") + "; data.sampler " +
                             config.data.sampler));
  if (inputs.valid) {
    write(Labelled("evaluation", std::to_string(inputs.valid->count()) + " windows, every " +
                                     std::to_string(config.train.eval_every) + " steps"));
  }
}

void TellSteps(const RunInputs& inputs, const Estimate& estimate, const WriteText& write) {
  const TrainConfig& config = inputs.config;
  const Arrangement& ranks = estimate.arrangement;
  write(Labelled("ranks", std::to_string(ranks.ranks) + ": " + std::to_string(ranks.shard_ranks) +
                              " divide a model (" + config.parallel.strategy + "), " +
                              std::to_string(ranks.copies) +
                              (ranks.copies == 1 ? " copy" : " copies")));
  const double epochs = static_cast<double>(estimate.windows_per_step) *
                        static_cast<double>(config.train.steps) /
                        static_cast<double>(inputs.train->window_count());
  write(Labelled("steps", std::to_string(config.train.steps) + " of " +
                              std::to_string(estimate.windows_per_step) + " windows, in " +
                              std::to_string(estimate.step.forwards) + " forwards of at most " +
                              std::to_string(estimate.micro_batch_size) + " on a rank; " +
                              Decimal(epochs) + " epochs"));
  const Json& schedule = inputs.resolved.at("schedule");
  write(
      Labelled("optimizer",
               config.optimizer.name + ", rate " + Decimal(config.optimizer.lr) + ", schedule " +
                   schedule.at("kind").get<std::string>() + " behind " +
                   std::to_string(config.schedule.warmup_steps) + " steps of warm-up, last rate " +
                   Decimal(config.optimizer.lr *
                           config.schedule.Factor(std::max<int64_t>(0, config.train.steps - 1)))));
}

void TellStart(const Start& start, int64_t steps, const WriteText& write) {
  if (!start.candidate) {
    write(Labelled("start", "at step 0"));
    return;
  }
  write(Labelled("start", "after step " + std::to_string(start.training.step) + ", from " +
                              start.candidate->path +
                              (start.training.step >= steps ? "; nothing is left to train" : "")));
  for (const std::string& change : start.changes) {
    write(Labelled("  changed", change));
  }
}

std::string PeriodText(const TrainConfig::Checkpoint& checkpoints) {
  std::string text;
  if (checkpoints.every_steps > 0) {
    text += ", every " + std::to_string(checkpoints.every_steps) + " steps";
  }
  if (checkpoints.every_minutes > 0) {
    text += ", every " + Decimal(checkpoints.every_minutes) + " minutes";
  }
  return text + ", at the end";
}

void TellPlaces(const TrainConfig& config, const Estimate& estimate, const WriteText& write) {
  const TrainConfig::Checkpoint& checkpoints = config.checkpoint;
  if (checkpoints.dir.empty()) {
    write(Labelled("checkpoints", "none (checkpoint.dir is not set)"));
  } else {
    const std::optional<int64_t> free = checkpoint::FileSystem().FreeBytes(checkpoints.dir);
    write(
        Labelled("checkpoints", "in " + checkpoints.dir + PeriodText(checkpoints) + "; each has " +
                                    BytesText(estimate.checkpoint_bytes) +
                                    (free ? ", and " + BytesText(*free) + " are free there" : "")));
    if (free && *free < estimate.checkpoint_bytes) {
      write(Labelled("  warning",
                     "there is no room for a checkpoint; make some, or choose another "
                     "checkpoint.dir"));
    }
  }
  const TrainConfig::Metrics& metrics = config.metrics;
  for (const auto& [label, path] :
       {std::pair("metrics", &metrics.jsonl), std::pair("curves", &metrics.tensorboard),
        std::pair("timeline", &metrics.trace_dir)}) {
    if (!path->empty()) {
      write(Labelled(label, *path));
    }
  }
}

}  // namespace

void CheckRun(const Json& resolved, int64_t ranks, const WorkerEnvironment& environment,
              const WriteText& write) {
  WorkerEnvironment planned = environment;
  planned.world_size = static_cast<int>(ranks);
  const RunInputs inputs = ReadInputs(resolved, planned, Outputs::kLookedAt);
  const EstimateOptions options{.ranks = ranks,
                                .speed = {},
                                .weights_dtype = DtypeOfStoredBase(inputs.config, inputs.model),
                                .auto_backend = AutoBackendHere(environment.group_world_size == 1)};
  Estimate estimate = EstimateRun(inputs.config, inputs.model, options);
  CheckModule(inputs);
  CheckpointKeys(inputs.config, inputs.model);  // refuses patterns that match nothing
  // A world of this process alone.
  const checkpoint::Group group{fsdp::init_process_group(fsdp::ProcessGroupOptions{}), at::kCPU,
                                nullptr, std::make_shared<checkpoint::StepList>()};
  const Start start = FindStart(inputs, ranks, group);
  TrainConfig limited = inputs.config;
  const std::string limit = LimitFor(inputs, environment, start, ranks, group, limited);
  estimate = EstimateRun(limited, inputs.model, options);
  CheckNamedWeights(inputs, start.candidate.has_value());
  CheckDirectory(inputs, environment, start);
  write(Labelled("check", "this is what would happen; nothing was started or written"));
  TellModelAndData(inputs, estimate, options.weights_dtype, write);
  TellSteps(inputs, estimate, write);
  if (!limit.empty()) {
    write(Labelled("  limit", limit));
  }
  TellStart(start, inputs.config.train.steps, write);
  TellPlaces(inputs.config, estimate, write);
  write(Labelled("memory", PeakText(estimate) + ", by the estimate (fsdp-train estimate)"));
}

}  // namespace fsdprun::worker
