#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "worker/batch/micro_batch_limit.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/contract/control_channel.h"
#include "worker/contract/worker_environment.h"
#include "worker/metrics/fault_notice.h"
#include "worker/metrics/run_report.h"
#include "worker/metrics/vitals.h"
#include "worker/run/batches.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/evaluation.h"
#include "worker/run/inputs.h"
#include "worker/run/launch.h"
#include "worker/run/resume.h"
#include "worker/run/rollback.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"
#include "worker/run/step_trace.h"
#include "worker/run/stop_listener.h"
#include "worker/run/training_step.h"
#include "worker/world/world.h"

namespace fsdprun::worker {

/// One training run of this rank, from the configuration to the last checkpoint: puts its parts
/// together, and says what follows what. Thread: one. All calls are collective over the job's
/// ranks.
class Trainer {
 public:
  /// Checks the input (data, model description, output paths), forms the world, initialises or
  /// loads the weights. Errors: ConfigError if a restart cannot help; otherwise c10::Error,
  /// CheckpointError, std::runtime_error. `channel` outlives this object.
  Trainer(const Json& resolved, const WorkerEnvironment& environment, ControlChannel& channel);
  Trainer(const Trainer&) = delete;  // its parts refer to it
  Trainer& operator=(const Trainer&) = delete;

  /// Trains to train.steps, or until a stop is requested (a signal, or a stop record to any rank);
  /// then all ranks save a checkpoint and return: Note [Stopping in the middle]. After a save
  /// record to rank 0 they save one at the end of the step, and go on. Errors: as above;
  /// DivergedError for a bad step, naming it, if its policy is to stop, a limit is reached, or
  /// there is no checkpoint to go back to; no weights are updated with it.
  void Run();

 private:
  // The start, in this order.
  /// The ranks meet, and compare what they were given.
  void FormWorld();
  /// The model and the optimizer, sharded; no values yet.
  void MakeState();
  /// Values, and the claim of checkpoint.dir.
  void Resume(const LaunchIdentity& identity, uint64_t generation);
  /// Takes over what was found out about memory: Note [Out of memory]. Returns what is to be told
  /// of it; empty: nothing.
  std::string TakeMicroBatchLimit();
  /// Writes that it is of this run, where a start without a checkpoint has begun another.
  void KeepMicroBatchLimit(MicroBatchLimit limit);

  /// Does one step and what is due after it. Returns whether some rank was asked to stop.
  bool StepAndFollow();
  /// One step, and with what is late all that has been done, if something is due that needs it.
  StepOutcome DoSteps();
  /// What is due after a good step. Returns whether some rank was asked to stop.
  bool Follow(const StepOutcome& outcome);
  bool IsEvery(int64_t steps) const { return steps > 0 && state_.step % steps == 0; }
  /// Unless the present step has been evaluated. Returns the same.
  bool Evaluate();
  EvaluationOptions OptionsOfEvaluation();
  /// What `action` returns. Errors: its own; MemoryError for one for want of memory.
  template <class Action>
  auto WithinMemory(const Action& action, bool is_evaluation = false);
  [[noreturn]] void EndForMemory(const std::exception& error, bool is_evaluation);
  RunContext Context() { return {inputs_.config, world_, channel_, vitals_, *report_, stop_}; }

  ControlChannel& channel_;
  Vitals vitals_;
  RunInputs inputs_;
  StopListener stop_;
  std::optional<RunReport> report_;
  World world_;
  RunState state_;
  checkpoint::Group checkpoint_group_;
  std::optional<TrainBatches> batches_;
  std::optional<CheckpointKeeper> checkpoints_;
  std::optional<TrainingStep> step_;
  std::optional<Resumer> resumer_;
  std::optional<Rollback> rollback_;
  std::optional<StepTrace> trace_;
  /// A stop has interrupted the evaluation that the checkpoint's step asks for.
  bool must_evaluate_first_ = false;
  /// The launch's job id; empty: unknown.
  std::string launch_;
  /// If this process fails, its launcher starts the ranks again.
  bool is_restarted_ = false;
  FaultNotice memory_notice_;
};

}  // namespace fsdprun::worker
