#pragma once

#include <string>

#include "agent/local/local_agent.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/command_line.h"
#include "launcher/report/console.h"
#include "launcher/run/signals.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Flushes the remaining output to the console's reader at the end of a run, until a deadline or a
/// signal. Thread: the main thread, after the loop.
class OutputDrain {
 public:
  OutputDrain(Console& console, SignalWatcher& signals, MonoTime deadline)
      : console_(console), signals_(signals), deadline_(deadline) {}

  /// Shows what is left in the agent's log files, at the reader's pace.
  void ShowRemainingOutput(LocalAgent& agent);
  /// Waits until the reader has read everything that was queued.
  void WaitForReader();

  /// The reader has read all of ShowRemainingOutput()'s output, or has closed its end.
  bool all_shown() const { return all_shown_; }
  /// The given deadline, or the earlier time at which a signal arrived.
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
  EventLoop& loop;
};

/// Prints how the job ended, unless it succeeded; a failure is also written to the error file of an
/// outer launcher (TORCHELASTIC_ERROR_FILE), unless its file system hangs.
void ReportOutcome(const JobOutcome& outcome, const EndContext& context);
/// The same for a node that knows no more than why it has to end.
void ReportReason(const std::string& reason, const EndContext& context);

}  // namespace fsdprun
