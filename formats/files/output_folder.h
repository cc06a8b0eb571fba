#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "formats/files/output_file.h"

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

  /// Gives the folder its name. Into one that is there (kReplace), the files are moved one by one,
  /// `last` at the end; before that its files are removed for which `is_stale` holds. Other files
  /// of it stay.
  void Publish(const std::string& last, const std::function<bool(const std::string&)>& is_stale);

 private:
  void MoveInto(const std::string& last, const std::function<bool(const std::string&)>& is_stale);

  std::string path_;
  std::string temporary_;  // empty: published
  Existing existing_;
};

}  // namespace fsdprun
