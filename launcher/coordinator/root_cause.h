#pragma once

// Which failure of a generation is the root cause, and which are its consequences.

#include <cstddef>
#include <optional>
#include <vector>

#include "base/mono_time.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Collects the failures of one generation in the order in which they happened. Memory: of 4,096
/// failures, and of what their workers have said that of the first 1,024, of victims of the first
/// 256; the rest is counted.
class FailureLog {
 public:
  /// Adds a failure received at `received`. `since` is when it began as far as the coordinator can
  /// tell: for a lost node the break of its stream or its last heartbeat, for a report `received`
  /// less the report's age. Victims of a stop order are only counted; false for
  /// them.
  bool Add(Failure failure, MonoTime received, MonoTime since);
  void Clear();

  bool empty() const { return entries_.empty(); }
  /// True if a worker exited with a code after which a restart cannot help (contract::kExitConfig).
  bool HasPermanent() const;
  /// True if the generation did not get on: see job::WorldHangs.
  bool HasHang() const;
  /// The report with the root cause picked out; `empty()` must be false. See Note [Root cause].
  FailureReport Report() const;
  /// The kind of that root cause; unset if the log is empty.
  std::optional<CauseKind> RootKind() const;
  int collateral() const { return collateral_; }

 private:
  struct Entry {
    Failure failure;
    /// The place in the order: when it happened, or was decided if no report tells.
    MonoTime at;
    MonoTime since;
  };
  size_t RootIndex() const;
  bool StoppedWorkerOutranks(const Entry& root) const;
  void DropTextsBehind(size_t place);

  std::vector<Entry> entries_;
  /// The first of the collateral workers that were failing when the stop order came.
  std::optional<Entry> failed_before_stop_;
  int not_kept_ = 0;
  int collateral_ = 0;
};

/// For launchers that exit as the worker that is the root cause has: its exit code, 128 + n if
/// signal n killed it or ended the job; the outcome's own code where no worker is the cause.
int ExitCodeOfCause(const JobOutcome& outcome);

/// The job has ended because its workers have, well or badly.
bool IsEndOfWorkers(const JobOutcome& outcome);

/// True for a death by a signal that victims of another failure do not die of: SIGKILL, SIGSEGV,
/// SIGBUS and the like, but not SIGABRT (an uncaught exception, a watchdog) and not SIGPIPE (a lost
/// peer).
bool IsCulpritSignal(int signal);

}  // namespace fsdprun
