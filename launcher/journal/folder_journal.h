#pragma once

#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "launcher/journal/journal.h"

namespace fsdprun {

/// A journal in a folder: a file `record` that is replaced as a whole, and a file `lock` that keeps
/// a second coordinator out as long as this object, or its process, lives.
class FolderJournal : public Journal {
 public:
  /// Makes the folder if it is not there (but not its parents), locks it and reads what a
  /// coordinator before this one has left. Errors, each one line that says what to do:
  /// ALREADY_EXISTS if another coordinator uses it, UNAVAILABLE for what the file system says, and
  /// those of Use().
  static absl::StatusOr<std::unique_ptr<FolderJournal>> Open(const std::string& folder,
                                                             const JournaledJob& job);

  absl::Status Write(const job::Record& record) override;
  std::string identity() const override;

 private:
  FolderJournal(std::string folder, JournaledJob job, UniqueFd folder_fd, UniqueFd lock);

  absl::Status ReadRecord();

  // Constant after construction.
  const std::string folder_;
  const JournaledJob job_;
  const UniqueFd folder_fd_;
  const UniqueFd lock_;
};

}  // namespace fsdprun
