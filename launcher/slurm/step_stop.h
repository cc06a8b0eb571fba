#pragma once

#include "base/mono_time.h"

namespace fsdprun {

/// How the srun of a job that is over is brought to its end, whatever it waits for: a lost node, a
/// controller that does not answer. Pure.
class StepStop {
 public:
  /// In this order.
  enum class Action {
    kNone,
    /// SIGTERM: srun kills the step at once.
    kTerminate,
    /// SIGKILL: it has not done so.
    kKill,
    /// Nobody waits for it any more.
    kLeave,
  };

  /// How long each of them may take to help.
  static constexpr Duration kPatience = std::chrono::seconds(10);

  /// The first action is due, unless there was one.
  void Begin(MonoTime now);
  /// The next action is due: an operator will not wait.
  void Hurry(MonoTime now);
  /// The action that is due, once.
  Action Next(MonoTime now);
  /// When the next one will be; MonoTime::max() if there is none.
  MonoTime due() const { return due_; }
  bool has_begun() const { return last_ != Action::kNone; }

 private:
  Action last_ = Action::kNone;
  MonoTime due_ = MonoTime::max();
};

}  // namespace fsdprun
