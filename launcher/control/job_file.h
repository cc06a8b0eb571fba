#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// What a process says of the job whose coordinator it hosts, to the other programs of its user on
/// this machine.
struct JobEntry {
  std::string run_id;
  int64_t pid = 0;
  /// The name of the node.
  std::string node;
  /// Where nodes join; empty if none can.
  std::string endpoint;
  /// The socket at which it answers questions.
  std::string socket;
  /// Unix time in milliseconds.
  int64_t began_ms = 0;
};

/// A JobEntry in a file of the folder of jobs, locked for as long as the process lives: a file that
/// can be locked is left over, whatever became of the process and its pid.
class JobFile {
 public:
  /// `folder` is there, and private to the user. Errors: UNAVAILABLE.
  static absl::StatusOr<JobFile> Create(const std::string& folder, const JobEntry& entry);
  /// Removes it.
  ~JobFile();
  JobFile(JobFile&& other) noexcept;
  JobFile& operator=(JobFile&& other) noexcept;

 private:
  JobFile(std::string path, UniqueFd lock);

  std::string path_;
  UniqueFd lock_;
};

/// Below a user's RuntimeFolder().
std::string JobsFolder(const std::string& runtime_folder);

/// The name of what belongs to an entry of this process, without its ending.
std::string JobFileName(int64_t pid, const std::string& run_id);

/// The jobs whose processes live, the oldest first. Removes what others have left over.
std::vector<JobEntry> ListJobs(const std::string& folder);

}  // namespace fsdprun
