#include "launcher/slurm/step_stop.h"

#include <algorithm>

namespace fsdprun {

void StepStop::Begin(MonoTime now) {
  if (!has_begun()) {
    Hurry(now);
  }
}

void StepStop::Hurry(MonoTime now) {
  if (last_ != Action::kLeave) {
    due_ = std::min(due_, now);
  }
}

StepStop::Action StepStop::Next(MonoTime now) {
  if (now < due_) {
    return Action::kNone;
  }
  last_ = static_cast<Action>(static_cast<int>(last_) + 1);
  due_ = last_ == Action::kLeave ? MonoTime::max() : now + kPatience;
  return last_;
}

}  // namespace fsdprun
