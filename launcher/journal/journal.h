#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/coordinator/job_record.h"
#include "launcher/journal/record_codec.h"

namespace fsdprun {

/// The journal of one job's coordinator in a folder: a file `record` that is replaced as a whole,
/// and a file `lock` that keeps a second coordinator out as long as this object, or its process,
/// lives. Every method may block as long as the file system does. Thread: one at a time.
class Journal {
 public:
  /// Makes the folder if it is not there (but not its parents), locks it and reads what a
  /// coordinator before this one has left. Errors, each one line that says what to do:
  /// ALREADY_EXISTS if another coordinator uses it, FAILED_PRECONDITION if it is another job's,
  /// DATA_LOSS or UNIMPLEMENTED if it cannot be read, UNAVAILABLE for what the file system says.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& folder,
                                                       const JournaledJob& job);

  /// What was found; nothing in a new journal.
  const std::optional<job::Record>& found() const { return found_; }
  /// On return the record is on the disk, and what was there before is not. Errors: UNAVAILABLE;
  /// then what was there before still is.
  absl::Status Write(const job::Record& record);

 private:
  Journal(std::string folder, JournaledJob job, UniqueFd folder_fd, UniqueFd lock);

  absl::Status ReadRecord();

  // Constant after construction.
  const std::string folder_;
  const JournaledJob job_;
  const UniqueFd folder_fd_;
  const UniqueFd lock_;

  std::optional<job::Record> found_;
};

}  // namespace fsdprun
