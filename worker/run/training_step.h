#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "worker/metrics/metrics.h"
#include "worker/run/batches.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"

namespace fsdprun::worker {

/// What all ranks know after a step; the same on all of them.
struct StepOutcome {
  /// Some rank was asked to stop.
  bool is_stopping = false;
  /// Rank 0 was asked for a checkpoint.
  bool must_save = false;
  /// The save that was begun before has ended on all ranks.
  bool has_saved = false;
};

/// Does optimizer steps: batches, forwards and backwards, clipping, the update. Thread: one.
class TrainingStep {
 public:
  /// All references outlive this object. `state` is what is trained, and saved beside that by
  /// `checkpoints`.
  TrainingStep(const RunContext& context, TrainBatches& batches, RunState& state,
               CheckpointKeeper& checkpoints);

  /// One step; collective. A step that does not fit into the grace of a stop is left unfinished,
  /// and leaves no trace: Note [Stopping in the middle]. Errors: DivergedError for a loss or
  /// gradient norm that is not finite, before the weights are updated.
  StepOutcome Do();

  /// How many forwards follow each other until ranks ask each other whether to stop; the same on
  /// all ranks.
  int64_t forwards_per_poll() const;

 private:
  /// Runs `forwards` micro batches; each contributes the gradient of its loss / forwards. Returns
  /// the mean loss over micro batches and ranks; nullopt if the step must be abandoned.
  std::optional<float> ForwardBackward(int64_t forwards, StepOutcome& outcome);
  /// Returns its part of the loss.
  at::Tensor Backward(int64_t forwards, bool is_last_forward);
  /// The mean loss over the ranks, of which this one took `seconds`, and what they were asked.
  float Conclude(const at::Tensor& loss, double seconds, StepOutcome& outcome);
  void Report(StepMetrics metrics);

  RunContext context_;
  TrainBatches& batches_;
  RunState& state_;
  CheckpointKeeper& checkpoints_;
  /// Of the forwards and backwards of the last step, mean over the ranks; 0: unknown.
  double step_seconds_ = 0;
};

}  // namespace fsdprun::worker
