#pragma once

#include <optional>

#include "base/mono_time.h"
#include "launcher/chaos/plan/powers.h"

namespace fsdprun::chaos {

/// What is seen of a job from outside.
struct JobTrace {
  /// Its coordinator lives.
  bool is_there = false;
  /// As in JobView.
  bool is_replaced = false;
  /// When it was there last.
  MonoTime seen_at{};
  /// What the job has said of its end, in its state or its events.
  std::optional<int> exit_code;
  /// All workers ran once.
  bool has_run = false;
};

struct JobOver {
  /// Unset: nobody knows, or a command that goes on will tell.
  std::optional<int> exit_code;
  /// How long its coordinator was nowhere to be found, if that is all that is known.
  std::optional<Duration> gone_for;
};

/// Whether the job is over, by what is seen of it; nothing if it is not, or if the end of a process
/// that was started here tells (Form::kNodes). A command that was started may go on after its job,
/// and start another one, which is not the job. What ran already may have its coordinator started
/// again, for which somebody has as much time as for an answer (`patience`). Pure.
std::optional<JobOver> OverByTrace(Form form, const JobTrace& trace, Duration patience,
                                   MonoTime now);

}  // namespace fsdprun::chaos
