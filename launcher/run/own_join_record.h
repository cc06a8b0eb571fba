#pragma once

#include <memory>

#include "absl/status/status.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "base/mono_time.h"
#include "launcher/cli/option_table.h"
#include "launcher/directory/join_record_file.h"
#include "launcher/run/join_record_sweep.h"
#include "launcher/slurm/join_record.h"

namespace fsdprun {

/// The record that this launcher leaves for those who let nodes join its job. The folder may be
/// on a file system that hangs, so that all of it happens on a thread of its own, and nothing waits
/// for it but the destructor, for a bounded time. Thread: the loop's.
class OwnJoinRecord {
 public:
  /// Begins to write it, then to remove those of jobs that are over. A failure is logged.
  /// `environment` must outlive this. `files` serves nobody else from now on. `remove_timeout`: how
  /// long a file system that hangs may delay the end of the launcher.
  OwnJoinRecord(EventLoop& loop, const Environment& environment, const SlurmJoinRecord& record,
                std::unique_ptr<FileThread> files, Duration remove_timeout);
  /// Removes it, if that has not begun, and waits until that is done or cannot be.
  ~OwnJoinRecord();
  OwnJoinRecord(const OwnJoinRecord&) = delete;
  OwnJoinRecord& operator=(const OwnJoinRecord&) = delete;

  /// Begins to remove it; who joins has to find that of the next run.
  void Remove();

 private:
  void OnWritten(const absl::Status& status);

  // Constant after construction.
  EventLoop& loop_;
  const Environment& environment_;
  const SlurmJoinRecord record_;
  const Duration remove_timeout_;

  // Owned by the loop thread.
  /// Only tasks look into it: the file is removed where it was written, also if that ends late.
  /// Theirs alone once it is being removed.
  std::shared_ptr<std::unique_ptr<JoinRecordFile>> file_;
  bool is_removed_ = false;
  MonoTime remove_until_{};
  std::unique_ptr<JoinRecordSweep> sweep_;
  /// Ends before all that its tasks tell.
  const std::unique_ptr<FileThread> files_;
};

}  // namespace fsdprun
