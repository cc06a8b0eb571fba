#include "worker/run/run_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "worker/estimate/estimated_weights.h"
#include "worker/run/frozen_base.h"
#include "worker/run/optimizer_groups.h"
#include "worker/run/random_state.h"
#include "worker/run/training_state.h"

namespace fsdprun::worker {
namespace {

void Append(std::vector<fsdp::LocalShard>& to, std::vector<fsdp::LocalShard> slices,
            const std::string& prefix, const std::string& suffix) {
  for (fsdp::LocalShard& slice : slices) {
    slice.fqn = prefix + slice.fqn + suffix;
    to.push_back(std::move(slice));
  }
}

fsdp::LocalShard NoSlice(const std::string& key, const std::vector<int64_t>& shape) {
  fsdp::LocalShard slice;
  slice.fqn = key;
  slice.global_shape = shape;
  slice.local = at::empty({0});
  return slice;
}

/// What PyTorch calls what an optimizer keeps of a parameter.
std::vector<std::string> KeptOfParameter(OptimizerKind kind,
                                         const TrainConfig::Optimizer& options) {
  if (kind == OptimizerKind::kAdamW) {
    return {"exp_avg", "exp_avg_sq", "step"};
  }
  return kind == OptimizerKind::kSgd && options.momentum == 0
             ? std::vector<std::string>{"step"}
             : std::vector<std::string>{"momentum_buffer", "step"};
}

}  // namespace

at::Tensor CaptureSteps(const RunOptimizer& optimizer) {
  const std::vector<int64_t> counts = optimizer.ParameterSteps();
  return at::tensor(at::ArrayRef<int64_t>(counts)).to(at::kFloat);
}

void RestoreSteps(const at::Tensor& steps, RunOptimizer& optimizer) {
  constexpr float kMax = 1e15F;
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < steps.numel(); ++i) {
    const float count = steps[i].item<float>();
    if (!(count >= 0 && count <= kMax && std::floor(count) == count)) {
      char text[32];
      std::snprintf(text, sizeof text, "%g", double{count});
      throw checkpoint::MismatchError(std::string("its optimizer has done ") + text + " steps");
    }
    counts.push_back(static_cast<int64_t>(count));
  }
  try {
    optimizer.SetParameterSteps(counts);
  } catch (const c10::Error& error) {
    throw checkpoint::MismatchError(error.what_without_backtrace());
  }
}

checkpoint::State WeightTensors(const ShardedModel& model) {
  checkpoint::State state;
  Append(state.tensors,
         model.has_adapters ? TrainedParameters(model) : model.root.sharded_parameters(), "model.",
         "");
  return state;
}

checkpoint::State CheckpointTensors(const ShardedModel& model, const RunOptimizer& optimizer,
                                    const at::Tensor& steps) {
  checkpoint::State state = WeightTensors(model);
  for (OptimizerTensors& tensors : optimizer.Tensors()) {
    Append(state.tensors, std::move(tensors.parts), "optim.state.", "." + tensors.name);
  }
  int64_t index = 0;
  for (const fsdp::LocalShard& parameter : model.root.sharded_parameters()) {
    const int64_t number = index++;
    if (model.frozen.contains(parameter.fqn)) {
      continue;
    }
    fsdp::LocalShard step;
    step.fqn = "optim.state." + parameter.fqn + ".step";
    step.boxes = {fsdp::Box{}};
    step.local = steps.narrow(0, number, 1);
    state.tensors.push_back(std::move(step));
  }
  return state;
}

checkpoint::State CheckpointKeys(const TrainConfig& config, const ModelConfig& model) {
  const std::set<std::string> frozen = FrozenWeights(config, model);
  checkpoint::State state;
  std::vector<fsdp::LocalShard> weights;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const EstimatedWeight& weight : WeightsOf(config, model)) {
    weights.push_back(NoSlice(weight.name, weight.shape));
    shapes[weight.name] = weight.shape;
    if (!config.lora.is_on() || !frozen.contains(weight.name)) {
      state.tensors.push_back(NoSlice("model." + weight.name, weight.shape));
    }
  }
  for (const OptimizerGroup& group : GroupParameters(weights, config.optimizer, frozen)) {
    for (const std::string& name : group.params) {
      for (const std::string& kept : KeptOfParameter(group.kind, config.optimizer)) {
        const bool is_count = kept == "step";
        state.tensors.push_back(NoSlice("optim.state." + name + "." + kept,
                                        is_count ? std::vector<int64_t>{} : shapes.at(name)));
      }
    }
  }
  return state;
}

checkpoint::State Capture(const RunState& state, const TrainConfig& config) {
  checkpoint::State captured =
      CheckpointTensors(state.model, *state.optimizer, CaptureSteps(*state.optimizer));
  const int64_t last = std::max<int64_t>(0, state.step - 1);
  captured.param_groups_json =
      FormatParamGroups(state.model, config.optimizer, config.schedule.Factor(last));
  captured.training_state_json = FormatTrainingState(
      {state.step, state.tokens, state.cursor, state.windows, CaptureRng(), state.data,
       state.evaluated_step, state.record, state.description, state.bad_data, state.judged});
  captured.tokens = state.tokens;
  captured.run = state.run;
  return captured;
}

}  // namespace fsdprun::worker
