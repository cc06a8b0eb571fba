#include "worker/estimate/estimate.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "formats/models/model_flops.h"
#include "worker/batch/step_plan.h"

namespace fsdprun::worker {
namespace {

/// Inputs and targets are int64, and three batches are there at a time.
constexpr int64_t kBytesOfToken = 3 * 2 * 8;

/// An estimate adds up parts of less than twice this, and stays inside int64.
constexpr double kBytesMax = 0x1p60;

/// More than all of Activations, and than what the parameters take with all that is held for them.
double BytesAtMost(const ModelConfig& model, double tokens_of_forward, double seq_len) {
  // Of a tensor that goes into a matrix, or comes out of it, and what is made of it by norms.
  constexpr double kBytesOfWidth = 64;
  constexpr double kBytesOfParameter = 32;
  double widths = 0;
  for (const WeightShape& weight : model.weights) {
    widths +=
        static_cast<double>(std::accumulate(weight.shape.begin(), weight.shape.end(), int64_t{0}));
  }
  const double masks = 4 * seq_len * seq_len * static_cast<double>(model.weights.size());
  return std::max(kBytesOfWidth * tokens_of_forward * widths + masks,
                  kBytesOfParameter * static_cast<double>(ParameterCount(model)));
}

void CheckCountable(const ModelConfig& model, const ForwardShape& shape) {
  const double bytes =
      BytesAtMost(model, static_cast<double>(shape.tokens()), static_cast<double>(shape.seq_len));
  if (!(bytes <= kBytesMax)) {
    throw ConfigError(
        "configuration: model.config, train.micro_batch_size and data.seq_len: expected a model "
        "and forwards that take less than 2^60 bytes");
  }
}

ForwardShape ShapeOf(const TrainConfig& config, const Arrangement& arrangement,
                     const StepPlan& plan) {
  ForwardShape shape;
  shape.windows = std::min(plan.micro_batch_size, plan.own_samples);
  shape.seq_len = config.data.seq_len;
  shape.element_bytes = BytesOfDtype(config.precision.param);
  shape.is_gpu = arrangement.is_gpu;
  shape.has_fused_kernels = config.model.has_fused_kernels;
  shape.checkpoints_blocks = config.train.activation_checkpointing;
  return shape;
}

/// What checkpoint.async keeps from save to save, of what a checkpoint has of a rank.
int64_t CheckpointCopyOf(const std::vector<WeightGroup>& groups, const TrainConfig& config,
                         const OptimizerMemory& optimizer) {
  if (config.checkpoint.dir.empty() || !config.checkpoint.is_async) {
    return 0;
  }
  int64_t saved = 0;
  for (const WeightGroup& group : groups) {
    saved += !config.lora.is_on() || group.memory.is_trainable ? group.shard_numel : 0;
  }
  return kMasterBytes * saved + optimizer.state;
}

void EstimateMemory(const TrainConfig& config, const std::vector<EstimatedWeight>& weights,
                    const StepPlan& plan, Estimate& estimate) {
  const std::vector<WeightGroup> groups =
      GroupsOf(weights, config, estimate.arrangement, plan.forwards);
  estimate.parameters = TotalOf(weights);
  estimate.trainable = TrainableOf(weights);
  for (const WeightGroup& group : groups) {
    estimate.parameters_of_rank += group.shard_numel;
  }
  const bool keeps_whole_gradients = plan.forwards > 1 && !config.train.sync_each_micro_batch;
  estimate.held = HeldMemoryOf(groups, keeps_whole_gradients);
  estimate.optimizer = OptimizerMemoryOf(weights, groups, config.optimizer);
  estimate.checkpoint_copy = CheckpointCopyOf(groups, config, estimate.optimizer);
  estimate.step = {plan.forwards, config.train.sync_each_micro_batch ? plan.forwards : 1};
  estimate.traffic = TrafficOf(weights, groups, config, estimate.arrangement, estimate.step);
  // With adapters these alone. And a float32 for each parameter, the number of its updates.
  const int64_t saved = config.lora.is_on() ? estimate.trainable : estimate.parameters;
  estimate.checkpoint_bytes = kMasterBytes * (saved + static_cast<int64_t>(weights.size())) +
                              estimate.optimizer.state_of_model;
}

}  // namespace

int64_t Estimate::peak() const {
  const int64_t copy = arrangement.is_gpu ? 0 : checkpoint_copy;
  return held.total() + optimizer.state + batches + copy +
         std::max(activations.peak(), optimizer.working);
}

double Estimate::tokens_per_second() const {
  return time ? static_cast<double>(tokens_per_step) / time->seconds() : 0;
}

Estimate EstimateRun(const TrainConfig& config, const ModelConfig& model,
                     const EstimateOptions& options) {
  Estimate estimate;
  TrainConfig::Parallel parallel = config.parallel;
  parallel.backend = parallel.backend == "auto" ? options.auto_backend : parallel.backend;
  estimate.arrangement = ArrangementOf(parallel, options.ranks);
  const StepPlan plan = PlanStep(config, /*rank=*/0, options.ranks);
  estimate.micro_batch_size = plan.micro_batch_size;
  estimate.windows_per_step = plan.samples;
  estimate.tokens_per_step = plan.samples * config.data.seq_len;
  estimate.total_steps = config.train.steps;
  const ForwardShape shape = ShapeOf(config, estimate.arrangement, plan);
  CheckCountable(model, shape);
  const std::vector<EstimatedWeight> weights = WeightsOf(config, model, options.weights_dtype);
  EstimateMemory(config, weights, plan, estimate);
  estimate.activations = ActivationsOf(model, weights, shape);
  estimate.batches = kBytesOfToken * shape.tokens();
  estimate.model_flops = ModelFlopsPerToken(model, config.data.seq_len, config.lora.is_on()) *
                         static_cast<double>(estimate.tokens_per_step);
  estimate.executed_flops = estimate.model_flops;
  if (config.train.activation_checkpointing) {
    estimate.executed_flops *= RecomputationFactor(model, config.data.seq_len, config.lora.is_on());
  }
  estimate.speed = options.speed;
  estimate.time =
      StepTimeOf(estimate.executed_flops, options.ranks, estimate.traffic, options.speed);
  return estimate;
}

}  // namespace fsdprun::worker
