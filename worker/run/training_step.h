#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "worker/batch/step_plan.h"
#include "worker/metrics/metrics.h"
#include "worker/run/bad_steps.h"
#include "worker/run/batches.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/counted_targets.h"
#include "worker/run/late_values.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"
#include "worker/run/step_body.h"
#include "worker/run/step_graph.h"

namespace fsdprun::worker {

/// What all ranks know of the steps that they have read; the same on all of them.
struct StepOutcome {
  /// Some rank was asked to stop.
  bool is_stopping = false;
  /// Rank 0 was asked for a checkpoint.
  bool must_save = false;
  /// By rank 0's clock one is due.
  bool is_save_due = false;
  /// The save that was begun before has ended on all ranks.
  bool has_saved = false;
  /// The run must go back to a checkpoint.
  std::optional<BadStep> bad_step = {};

  /// Of later steps.
  void Add(const StepOutcome& later);
};

// Note [One step late]
// On a device the host issues a step without waiting for the one before: it reads loss, gradient
// norm and what the ranks tell each other when it has issued the next step. So records and errors
// come one step later, and requests take effect one step later, on all ranks alike. What must not
// be a step ahead of them, such as a checkpoint, calls Flush() before. On the CPU, where a step has
// ended when it has been issued, nothing is late.

/// Does optimizer steps: batches, forwards and backwards, clipping, the update. Thread: one.
class TrainingStep {
 public:
  /// How many steps the host may issue before it reads what the oldest has come to: Note [One step
  /// late].
  static size_t LatenessOn(at::Device device) { return device.is_cpu() ? 0 : 1; }

  /// All references outlive this object. `state` is what is trained, and saved beside that by
  /// `checkpoints`. Errors: as PlanStep's.
  TrainingStep(const RunContext& context, TrainBatches& batches, RunState& state,
               CheckpointKeeper& checkpoints, size_t lateness,
               MakeDeviceGraph make_graph = fsdp::make_device_graph);

  /// One step; collective. Returns what is known of those that have been read. A step that does not
  /// fit into the grace of a stop is left unfinished, and leaves no trace: Note [Stopping in the
  /// middle]. Errors: DivergedError for a bad step, if its policy is to stop or a limit is reached;
  /// nothing was updated with its gradients, nor behind it unless it is a limit that is reached.
  /// `is_traced`: somebody wants to see its parts; the same on all ranks.
  StepOutcome Do(bool is_traced = false);
  /// Reads what is left, and completes the state for a checkpoint. Collective. Errors: as Do's.
  StepOutcome Flush();
  /// The state was loaded: goes on from it.
  void GoOnFromState();
  /// The last step, which has been read, has made weights infinite or NaN, as `what` says. Returns
  /// it as a bad step if train.on_nonfinite is to go back before such a step, as far as
  /// train.max_rollbacks lets it; the same on all ranks.
  std::optional<BadStep> BlameLastStep(const std::string& what);

  /// How many forwards follow each other until ranks ask each other whether to stop; the same on
  /// all ranks.
  int64_t forwards_per_poll() const;
  /// Whether a step was captured, whose memory is kept for it.
  bool has_graph() const { return graph_ && graph_->IsCaptured(); }

 private:
  using Clock = std::chrono::steady_clock;

  /// A step that has been issued and not read.
  struct Issued {
    StepMetrics metrics;
    DataRange data;
    Clock::time_point start;
    int64_t tokens = 0;
    Clock::duration waited{};               // of its time: for a checkpoint
    std::optional<StepOutcome> asked = {};  // if that has been read already
    std::optional<LateValues> values = {};
  };

  /// Runs the micro batches of the step, which began at `start`. Returns what the ranks tell each
  /// other (StepBody::Tell); nullopt if the step must be abandoned.
  std::optional<at::Tensor> ForwardBackward(Clock::time_point start);
  /// Of the data, or one that does not count.
  WeighedBatch NextBatch(const MicroBatch& micro);
  /// What a forward takes that does not count: of the first batch of the step, so that what is
  /// wrong with the data of other steps does no harm to this one.
  Batch Padding() const;
  /// Where a step ends that begins at `cursor`.
  DataCursor EndOfStep(const DataCursor& cursor) const;
  /// What this rank tells the others beside its loss, of which it took `seconds`: as
  /// StepBody::Tell's.
  at::Tensor NumbersToTell(double seconds);
  /// Leaves no trace of a step whose data began at `cursor`.
  StepOutcome Abandon(const DataCursor& cursor);
  /// What the ranks were asked, of what they have told each other.
  StepOutcome TakeRequests(const at::Tensor& told);
  /// The step ends, on the device. Returns what the host is to read of it.
  at::Tensor Update(const at::Tensor& told, Issued& issued);
  /// All of it, as a graph: Note [A step as a graph]. Returns as above; nullopt if the step must
  /// not be begun, as some rank was asked to stop.
  std::optional<at::Tensor> DoAsGraph(Issued& issued);
  /// It has been issued.
  void Note(const at::Tensor& values, Issued issued);

  /// All but the newest `kept`.
  StepOutcome Read(size_t kept);
  /// `is_undone`: it comes after one that the run goes back before, so only what the ranks told
  /// each other in it counts.
  StepOutcome ReadOne(Issued& issued, bool is_undone);
  void TakeTime(Issued& issued);
  void Report(const StepMetrics& metrics);

  RunContext context_;
  TrainBatches& batches_;
  RunState& state_;
  CheckpointKeeper& checkpoints_;
  const size_t lateness_;
  const StepPlan plan_;
  CountedTargets counted_;
  StepBody body_;
  /// With train.step_graph.
  std::optional<StepGraph> graph_;
  BadSteps bad_steps_;
  std::deque<Issued> issued_;
  /// Of the present step.
  std::optional<Batch> first_batch_;
  /// Of the last step that was read.
  DataRange last_data_;
  /// What this rank had waited for data before the step.
  double waited_before_ = 0;
  /// When the last step was read.
  std::optional<Clock::time_point> read_at_;
  /// Of the forwards and backwards of the last step, mean over the ranks; 0: unknown. Of one as a
  /// graph: of the whole step before.
  double step_seconds_ = 0;
  /// Of the last step that was read, on this rank.
  double read_seconds_ = 0;
};

}  // namespace fsdprun::worker
