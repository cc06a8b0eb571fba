#pragma once

#include <fsdp/optim.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint.h"
#include "worker/data/sample_order.h"
#include "worker/train/data_record.h"
#include "worker/train/job.h"
#include "worker/train/run_record.h"

namespace fsdprun::worker {

/// The state besides tensors that a run needs to resume exactly. The learning rate follows from the
/// step.
struct TrainingState {
  int64_t step = 0;
  int64_t tokens = 0;
  DataCursor cursor;
  /// Windows of the training data when the state was written.
  int64_t windows = 0;
  /// State of torch's default CPU generator, hexadecimal.
  std::string rng;
  /// The data that the cursor is a position in; absent in checkpoints of older versions.
  std::optional<DataRecord> data{};
  /// The last step after which the model was evaluated, -1: none; absent as above.
  std::optional<int64_t> evaluated_step{};
  /// What was trained and how; absent as above.
  std::optional<RunRecord> run{};
};

std::string FormatTrainingState(const TrainingState& state);
/// Errors: std::runtime_error naming what is missing or impossible.
TrainingState ParseTrainingState(const std::string& text);

std::string CaptureRng();
/// Errors: ConfigError if `rng` is not what CaptureRng returns.
void RestoreRng(const std::string& rng);

/// The step count of each parameter, as stored in a checkpoint: float32 [parameters].
at::Tensor CaptureSteps(const fsdp::AdamW& optimizer);
/// Errors: checkpoint::MismatchError for a count that is not an integer >= 0, and naming two
/// parameters of one group whose counts differ, which the optimizer does not support.
void RestoreSteps(const at::Tensor& steps, fsdp::AdamW& optimizer);

/// The tensors of the run as checkpoint slices: parameters, AdamW's moments, step counts. `steps`:
/// from CaptureSteps; the step entries are views of it, so pass it to RestoreSteps after a load.
checkpoint::State CheckpointTensors(const Job& job, const fsdp::AdamW& optimizer,
                                    const at::Tensor& steps);

/// The same without optimizer state, for reading weights only.
checkpoint::State WeightTensors(const Job& job);

/// One group of parameters with and, where the patterns of optimizer.no_decay match, one without
/// decay.
std::vector<fsdp::AdamWParamGroup> MakeParamGroups(const Job& job,
                                                   const TrainConfig::Optimizer& options);

/// These groups with all their options in PyTorch's terms.
std::string FormatParamGroups(const Job& job, const TrainConfig::Optimizer& options, double lr);

/// One line for each of betas, eps and weight_decay that differs between `stored` and `current` for
/// some parameter in both. Pure.
std::vector<std::string> DescribeChangedGroups(const std::string& stored,
                                               const std::string& current);

}  // namespace fsdprun::worker
