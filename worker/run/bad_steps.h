#pragma once

#include <cstdint>
#include <string>

#include "worker/config/config.h"
#include "worker/run/data_range.h"

namespace fsdprun::worker {

/// What a step's loss and gradient norm were, as the device says it in a float.
enum class Verdict { kGood = 0, kNonFinite = 1, kSpike = 2 };

/// What follows a step.
enum class StepAction { kGoOn, kSkip, kRollBack, kStop };

/// A step that the run must go back before, and on from there without its data.
struct BadStep {
  int64_t step = 0;
  DataRange data;
  /// "step 14: the loss is nan".
  std::string what;
};

/// What train.on_nonfinite or train.on_spike says of a verdict. Pure.
StepAction ActionFor(Verdict verdict, const TrainConfig::Train& train);

/// Decides what follows each step of a start, and how often. Equal on all ranks, as they see equal
/// verdicts. Pure.
class BadSteps {
 public:
  explicit BadSteps(const TrainConfig::Train& train) : train_(train) {}

  /// Of the steps in their order. kStop also where a limit is reached; then why() says so.
  StepAction Note(Verdict verdict);
  /// "; it is bad step 4 in a row, and train.max_bad_steps is 3", or nothing.
  const std::string& why() const { return why_; }

 private:
  TrainConfig::Train train_;
  int64_t in_a_row_ = 0;
  int64_t rollbacks_ = 0;
  std::string why_;
};

}  // namespace fsdprun::worker
