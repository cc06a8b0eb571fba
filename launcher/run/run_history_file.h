#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/slurm/run_history.h"

namespace fsdprun {

/// What is remembered of a launcher's runs in a job of Slurm, in a file of this user's folder,
/// which the nodes share: `slurm-runs/` and RunHistoryName(). Thread: the loop's.
class RunHistoryFile {
 public:
  /// Begins to read what an earlier run has left. `plan` has a scheduler's job. `files` serves
  /// nobody else from now on; what waits for it does so for `timeout` at most.
  RunHistoryFile(EventLoop& loop, const LaunchPlan& plan, const Environment& environment,
                 std::unique_ptr<FileThread> files, Duration timeout);
  ~RunHistoryFile();
  RunHistoryFile(const RunHistoryFile&) = delete;
  RunHistoryFile& operator=(const RunHistoryFile&) = delete;

  /// Adds this run, and tells what is known of those in a row with it. Bounded: where the
  /// file system does not answer, it is told from what was read until then. Where there is no such
  /// folder, or what it has cannot be read, all that began count. Call once.
  void Remember(const RunEnd& end, int restarts, std::function<void(const RunsInARow&)> then);

  /// There is no further run. With a bounded wait, for when the loop does not run any more. What
  /// this launcher has not written in this run may be another's, and stays.
  void Forget();

 private:
  using Read = absl::StatusOr<std::optional<PastRun>>;

  // Constant after construction.
  EventLoop& loop_;
  /// Empty without a home directory, as the path.
  const std::vector<std::string> folders_;
  const std::string path_;
  const std::shared_ptr<Read> read_;
  const Duration timeout_;

  // Owned by the loop thread.
  /// As soon as it was read.
  std::optional<PastRun> before_;
  bool has_remembered_ = false;
  EventLoop::TimerId timer_ = 0;
  /// Ends before all that its tasks tell.
  const std::unique_ptr<FileThread> files_;
};

}  // namespace fsdprun
