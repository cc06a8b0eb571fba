#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/config/config.h"
#include "worker/data/sample_order.h"
#include "worker/run/data_range.h"
#include "worker/run/data_record.h"
#include "worker/run/judged_steps.h"
#include "worker/run/run_description.h"
#include "worker/run/run_optimizer.h"
#include "worker/run/run_record.h"
#include "worker/run/sharded_model.h"

namespace fsdprun::worker {

/// What a run has come to: all that a checkpoint captures and a resumed run goes on from. Which
/// ranks there are is none of it (World).
struct RunState {
  /// Completed steps, and the tokens of the whole job in them.
  int64_t step = 0;
  int64_t tokens = 0;
  /// The position in the training data.
  DataCursor cursor;
  /// Data of bad steps, which none is to be done with again: train.on_nonfinite and
  /// train.on_spike.
  std::vector<DataRange> bad_data;
  /// Those that a spike is measured by.
  JudgedSteps judged;
  /// The last step after which the model was evaluated; -1: none.
  int64_t evaluated_step = -1;
  /// Its checkpoints and metrics; see checkpoint::State.
  std::string run;

  ShardedModel model;
  std::unique_ptr<RunOptimizer> optimizer;

  // What is trained on, and how; the same from the start to the end.
  int64_t windows = 0;
  DataRecord data;
  RunRecord record;
  RunDescription description;
};

/// All of `state`, and of torch's random numbers, as a checkpoint; its tensors are views of what is
/// trained. No collective.
checkpoint::State Capture(const RunState& state, const TrainConfig& config);

/// The step count of each parameter, as stored in a checkpoint: float32 [parameters].
at::Tensor CaptureSteps(const RunOptimizer& optimizer);
/// Errors: checkpoint::MismatchError for a count that is not an integer >= 0.
void RestoreSteps(const at::Tensor& steps, RunOptimizer& optimizer);

/// The tensors of the run as checkpoint slices: WeightTensors, and of the parameters that are
/// trained the optimizer's and step counts. `steps`:
/// from CaptureSteps; the step entries are views of it, so pass it to RestoreSteps after a load.
checkpoint::State CheckpointTensors(const ShardedModel& model, const RunOptimizer& optimizer,
                                    const at::Tensor& steps);

/// The same without a model: names and shapes, of slices that have nothing. Pure. Errors:
/// ConfigError, as FrozenWeights's and GroupParameters's.
checkpoint::State CheckpointKeys(const TrainConfig& config, const ModelConfig& model);

/// The weights that a checkpoint has: of a model with adapters these alone, else all.
checkpoint::State WeightTensors(const ShardedModel& model);

}  // namespace fsdprun::worker
