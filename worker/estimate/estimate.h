#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/estimate/activations.h"
#include "worker/estimate/held_memory.h"
#include "worker/estimate/optimizer_memory.h"
#include "worker/estimate/step_work.h"

namespace fsdprun::worker {

struct EstimateOptions {
  /// The ranks that the run is to have.
  int64_t ranks = 1;
  SpeedAssumptions speed;
  /// That the files of model.weights have: DtypeOfStoredBase.
  std::string weights_dtype = "float32";
  /// What parallel.backend = "auto" stands for: "nccl" with GPUs, without them "shm" for the ranks
  /// of one host and "gloo" for those of several.
  std::string auto_backend = "nccl";
};

/// What a run takes, before there is one, in bytes on the rank that takes most.
struct Estimate {
  // Parameters: all, and those that are trained.
  int64_t parameters = 0;
  int64_t trainable = 0;
  /// Of a rank, with padding.
  int64_t parameters_of_rank = 0;

  Arrangement arrangement;

  // A step.
  int64_t micro_batch_size = 0;
  StepForwards step;
  int64_t windows_per_step = 0;
  int64_t tokens_per_step = 0;

  // Memory.
  HeldMemory held;
  OptimizerMemory optimizer;
  Activations activations;
  /// Inputs and targets, of this step and of those that are read ahead.
  int64_t batches = 0;
  /// Of weights and states, from save to save, for checkpoint.async: on the host, where GPUs do not
  /// see it.
  int64_t checkpoint_copy = 0;

  /// Of a GPU, or of the host without them. The optimizer works when no activations are left.
  int64_t peak() const;

  // Work.
  Traffic traffic;
  /// Of a step of all ranks, as MFU counts them, and with what is computed again.
  double model_flops = 0;
  double executed_flops = 0;
  SpeedAssumptions speed;
  std::optional<StepTime> time;

  /// Of a checkpoint: weights that are trained and others, and what the optimizer keeps.
  int64_t checkpoint_bytes = 0;

  double tokens_per_second() const;
  /// Of the whole run.
  int64_t total_steps = 0;
};

/// Precondition: `config` is valid. Pure: says nothing of this machine. Errors: ConfigError if the
/// ranks cannot share the model or the batch, as the run's; and for what takes 2^60 bytes or more.
Estimate EstimateRun(const TrainConfig& config, const ModelConfig& model,
                     const EstimateOptions& options);

}  // namespace fsdprun::worker
