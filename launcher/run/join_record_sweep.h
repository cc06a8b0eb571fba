#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"
#include "launcher/cli/option_table.h"
#include "launcher/run/child_command.h"
#include "launcher/run/program_lookup.h"
#include "launcher/slurm/join_record.h"

namespace fsdprun {

/// Removes the records of jobs that are over: a launcher that was killed has left its own, with the
/// whole environment of the job. squeue says which jobs are not over. What hangs there holds up
/// nothing else. Thread: loop thread only.
class JoinRecordSweep {
 public:
  /// `own`: the record of this launcher's job. Begins at once; `environment` must outlive this.
  /// `files` does what touches the records; it must end before this does.
  JoinRecordSweep(EventLoop& loop, FileThread& files, const Environment& environment,
                  const SlurmJoinRecord& own);
  ~JoinRecordSweep();
  JoinRecordSweep(const JoinRecordSweep&) = delete;
  JoinRecordSweep& operator=(const JoinRecordSweep&) = delete;

  /// What was to be removed is removed, or nothing was.
  bool is_done() const { return is_done_; }

 private:
  void Ask(const absl::StatusOr<std::string>& squeue);
  void OnListing(int code);
  void Leave(const std::string& why);

  EventLoop& loop_;
  FileThread& files_;
  const Environment& environment_;
  const std::string cluster_;
  const std::string own_job_;
  /// Jobs that had a record before squeue was asked; one that begins later is none of them.
  std::vector<std::string> recorded_;
  ProgramLookup squeue_path_;
  std::unique_ptr<ChildCommand> squeue_;
  std::string said_;
  bool is_done_ = false;
};

}  // namespace fsdprun
