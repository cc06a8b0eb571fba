#pragma once

#include <cstdint>

#include "worker/run/bad_steps.h"
#include "worker/run/checkpoint_keeper.h"
#include "worker/run/resume.h"
#include "worker/run/run_context.h"
#include "worker/run/run_state.h"
#include "worker/run/training_step.h"

namespace fsdprun::worker {

// Note [Going back]
// A run goes back to its own newest checkpoint, whatever checkpoint.resume said at its start. What
// it has learnt by then, which data are bad, is in no checkpoint: a process that ended now would
// meet them again, with all its rollbacks before it. So the state is saved again at once, in the
// place of what was loaded. A run that is to stop does not go back: its time may not suffice, and
// the next start takes the newest checkpoint in any case.

/// Brings a run back before a bad step, and on from there. Thread: one.
class Rollback {
 public:
  /// All references outlive this object.
  Rollback(const RunContext& context, RunState& state, Resumer& resumer,
           CheckpointKeeper& checkpoints, TrainingStep& steps)
      : context_(context),
        state_(state),
        resumer_(resumer),
        checkpoints_(checkpoints),
        steps_(steps) {}

  /// Loads the state from before `bad`, to go on without its data, and saves that. With
  /// `is_stopping` nothing is loaded, and nothing more is saved. Collective, with the same
  /// arguments on all ranks. Returns whether the run is to stop. Errors: DivergedError if there is
  /// no checkpoint to go back to; as Resumer's and CheckpointKeeper::Save's.
  bool GoBack(const BadStep& bad, bool is_stopping);

 private:
  void LeaveOut(const BadStep& bad);

  RunContext context_;
  RunState& state_;
  Resumer& resumer_;
  CheckpointKeeper& checkpoints_;
  TrainingStep& steps_;
};

}  // namespace fsdprun::worker
