#include "worker/run/bad_steps.h"

namespace fsdprun::worker {

StepAction ActionFor(Verdict verdict, const TrainConfig::Train& train) {
  if (verdict == Verdict::kGood) {
    return StepAction::kGoOn;
  }
  const std::string& policy = verdict == Verdict::kSpike ? train.on_spike : train.on_nonfinite;
  return policy == "skip"       ? StepAction::kSkip
         : policy == "rollback" ? StepAction::kRollBack
                                : StepAction::kStop;
}

StepAction BadSteps::Note(Verdict verdict) {
  const StepAction action = ActionFor(verdict, train_);
  why_.clear();
  if (action == StepAction::kGoOn) {
    in_a_row_ = 0;
  } else if (action == StepAction::kSkip && ++in_a_row_ > train_.max_bad_steps) {
    why_ = "; it is bad step " + std::to_string(in_a_row_) +
           " in a row, and train.max_bad_steps is " + std::to_string(train_.max_bad_steps);
    return StepAction::kStop;
  } else if (action == StepAction::kRollBack && ++rollbacks_ > train_.max_rollbacks) {
    why_ = "; this start has gone back to a checkpoint " + std::to_string(rollbacks_ - 1) +
           " times, and train.max_rollbacks is " + std::to_string(train_.max_rollbacks);
    return StepAction::kStop;
  }
  return action;
}

}  // namespace fsdprun::worker
