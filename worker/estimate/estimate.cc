#include "worker/estimate/estimate.h"

#include <algorithm>

#include "formats/models/lora.h"
#include "formats/models/model_flops.h"
#include "worker/batch/step_plan.h"

namespace fsdprun::worker {
namespace {

/// Inputs and targets are int64, and three batches are there at a time.
constexpr int64_t kBytesOfToken = 3 * 2 * 8;

ForwardShape ShapeOf(const TrainConfig& config, const ModelConfig& model,
                     const Arrangement& arrangement, const StepPlan& plan) {
  ForwardShape shape;
  shape.windows = std::min(plan.micro_batch_size, plan.own_samples);
  shape.seq_len = config.data.seq_len;
  shape.element_bytes = BytesOfDtype(config.precision.param);
  shape.is_gpu = arrangement.is_gpu;
  shape.has_fused_kernels = config.model.has_fused_kernels;
  shape.checkpoints_blocks = config.train.activation_checkpointing;
  shape.is_loss_divided = plan.At(0).divisor != 1;
  shape.has_frozen_model = config.lora.is_on();
  if (config.lora.is_on()) {
    shape.adapter_ranks =
        config.lora.rank * static_cast<int64_t>(AdaptedLayers(model, config.lora).size());
  }
  return shape;
}

void EstimateMemory(const TrainConfig& config, const std::vector<EstimatedWeight>& weights,
                    const StepPlan& plan, Estimate& estimate) {
  const std::vector<WeightGroup> groups =
      GroupsOf(weights, config, estimate.arrangement, plan.forwards);
  estimate.parameters = estimate.active = TotalOf(weights);
  estimate.trainable = TrainableOf(weights);
  for (const WeightGroup& group : groups) {
    estimate.parameters_of_rank += group.shard_numel;
  }
  const bool keeps_whole_gradients = plan.forwards > 1 && !config.train.sync_each_micro_batch;
  estimate.held = HeldMemoryOf(groups, keeps_whole_gradients);
  estimate.optimizer = OptimizerMemoryOf(weights, groups, config.optimizer);
  estimate.step = {plan.forwards, config.train.sync_each_micro_batch ? plan.forwards : 1};
  estimate.traffic = TrafficOf(weights, groups, config, estimate.arrangement, estimate.step);
  // With adapters these alone. And a float32 for each parameter, the number of its updates.
  const int64_t saved = config.lora.is_on() ? estimate.trainable : estimate.parameters;
  estimate.checkpoint_bytes = kMasterBytes * (saved + static_cast<int64_t>(weights.size())) +
                              estimate.optimizer.state_of_model;
}

}  // namespace

int64_t Estimate::peak() const {
  return held.total() + optimizer.state + batches + std::max(activations.peak(), optimizer.working);
}

double Estimate::tokens_per_second() const {
  return time ? static_cast<double>(tokens_per_step) / time->seconds() : 0;
}

Estimate EstimateRun(const TrainConfig& config, const ModelConfig& model,
                     const EstimateOptions& options) {
  Estimate estimate;
  estimate.arrangement = ArrangementOf(config.parallel, options.ranks);
  const StepPlan plan = PlanStep(config, /*rank=*/0, options.ranks);
  estimate.micro_batch_size = plan.micro_batch_size;
  estimate.windows_per_step = plan.samples;
  estimate.tokens_per_step = plan.samples * config.data.seq_len;
  estimate.total_steps = config.train.steps;
  EstimateMemory(config, WeightsOf(config, model, options.weights_dtype), plan, estimate);
  const ForwardShape shape = ShapeOf(config, model, estimate.arrangement, plan);
  estimate.activations = ActivationsOf(model, shape);
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
