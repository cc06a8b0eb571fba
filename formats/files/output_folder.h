#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/files/output_stop.h"

namespace fsdprun {

/// A folder that is filled beside `path` under a temporary name and gets its own with Publish(); it
/// is removed if that is not reached. Thread: one. Errors: as OutputFile's.
class OutputFolder {
 public:
  /// Errors: also if `path` is there and may not be replaced, or is no folder; if fewer than
  /// `byte_count` bytes are free.
  OutputFolder(std::string path, int64_t byte_count, Existing existing);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::string& path() const { return path_; }
  /// Where a file of this name is to be written before Publish().
  std::string Place(const std::string& name) const { return temporary_ + "/" + name; }

  /// Gives the folder its name. One that is there (kReplace) is exchanged for it in one step, or,
  /// where the file system cannot, in two renames: a failure, and the end of the process at any
  /// moment, leaves the old or the new one whole. What the old one has besides files of the same
  /// names and those for which `is_stale` holds is in the new one as well. Errors: also if it has a
  /// folder of such a name, and nothing is changed then.
  void Publish(const std::function<bool(const std::string&)>& is_stale);

 private:
  void TakeName();
  void TakeModeOf(const std::string& folder);
  std::vector<std::string> CarryOver(const std::function<bool(const std::string&)>& is_stale);
  std::string TakePlace();
  void ClearReplaced(const std::string& old, const std::vector<std::string>& done);

  BegunOutput begun_;
  std::string path_;
  std::string temporary_;  // empty: published
  Existing existing_;
  int fd_ = -1;  // of the temporary folder, locked
};

}  // namespace fsdprun
