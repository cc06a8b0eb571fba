#pragma once

#include "agent/local/local_agent.h"
#include "agent/node/cluster_types.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/report/console.h"
#include "launcher/run/signals.h"

namespace fsdprun {

/// Waits at the end for whoever reads the console, until a deadline or until a signal has ended our
/// patience. Thread: the main thread, after the loop.
class OutputDrain {
 public:
  OutputDrain(Console& console, SignalWatcher& signals, MonoTime deadline)
      : console_(console), signals_(signals), deadline_(deadline) {}

  /// Shows what is still in the agent's log files, at the reader's pace.
  void ShowRest(LocalAgent& agent);
  /// Waits until the reader has taken everything that was queued.
  void AwaitReader();

  /// The reader has taken everything that ShowRest() had to show, or has gone away.
  bool all_shown() const { return all_shown_; }
  /// The given one, or the earlier time at which a signal came.
  MonoTime deadline() const { return deadline_; }

 private:
  bool IsOver();

  Console& console_;
  SignalWatcher& signals_;
  MonoTime deadline_;
  bool all_shown_ = false;
};

struct EndContext {
  CliProgram program;
  const LaunchPlan& plan;
  const Environment& environment;
  Console& console;
};

/// Says how the job has ended, unless it ended well; a failure also to the launcher that has
/// started this one (TORCHELASTIC_ERROR_FILE).
void ReportOutcome(const JobOutcome& outcome, const EndContext& context);

}  // namespace fsdprun
