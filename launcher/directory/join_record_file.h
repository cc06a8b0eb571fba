#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/slurm/join_record.h"

namespace fsdprun {

/// A job's record in this user's folder, `slurm/CLUSTER.JOB`, mode 0600: whoever may read it may
/// join the job, and who joins runs the command in it. Thread: any.
class JoinRecordFile {
 public:
  /// Replaces what an earlier run of the same job has left. Errors: with the file and why.
  static absl::StatusOr<std::unique_ptr<JoinRecordFile>> Write(const Environment& environment,
                                                               const SlurmJoinRecord& record);

  /// Removes the file, unless a later run of the job has replaced it.
  ~JoinRecordFile();
  JoinRecordFile(const JoinRecordFile&) = delete;
  JoinRecordFile& operator=(const JoinRecordFile&) = delete;

 private:
  JoinRecordFile(std::string path, std::string text)
      : path_(std::move(path)), text_(std::move(text)) {}

  const std::string path_;
  const std::string text_;
};

/// The record of `job` (`12`, `12_3`). Errors: NOT_FOUND if there is none, PERMISSION_DENIED if
/// others could have written it, INVALID_ARGUMENT for what is no record; each with what to do.
absl::StatusOr<SlurmJoinRecord> ReadJoinRecord(const Environment& environment,
                                               const std::string& job);

/// The jobs of this cluster that have left a record, also those whose launcher could not remove it.
std::vector<std::string> RecordedJobs(const Environment& environment, const std::string& cluster);
void RemoveJoinRecord(const Environment& environment, const std::string& cluster,
                      const std::string& job);

}  // namespace fsdprun
