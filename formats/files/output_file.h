#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/files/output_stop.h"

namespace fsdprun {

/// What becomes of a file or folder that already has the name of an output.
enum class Existing { kRefuse, kReplace };

/// The size of an output that is not known before it is whole.
inline constexpr int64_t kUnknownSize = -1;

/// A file that is written at any place, in any order; its size is known before, or is where the
/// last byte written is. It lies beside `path` under a temporary name until Publish(), and is
/// removed if that is not reached. Thread: one. Errors: fsdp::archive::Error that names path and
/// cause, for a full disk also the bytes needed (if known) and free; after StopOutputs() all that
/// is done here.
class OutputFile {
 public:
  /// Reserves the space, unless `byte_count` is kUnknownSize. Errors: also if `path` is there and
  /// may not be replaced.
  OutputFile(std::string path, int64_t byte_count, Existing existing);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  const std::string& path() const { return path_; }
  /// The name that it is to get instead, in the same folder.
  void SetPath(std::string path) { path_ = std::move(path); }
  void Write(int64_t offset, const void* data, int64_t byte_count);
  void Write(int64_t offset, std::string_view bytes);
  /// Makes the content durable and closes the file, of which any number may wait for their names.
  /// No write may follow; a second call does nothing.
  void Finish();
  /// Makes the content durable, then the name.
  void Publish();

 private:
  friend void PublishTogether(const std::vector<OutputFile*>& files,
                              const std::vector<std::string>& stale);

  BegunOutput begun_;
  std::string path_;
  std::string temporary_;  // empty: published
  int64_t byte_count_ = 0;
  bool grows_ = false;
  Existing existing_;
  int fd_ = -1;  // -1: finished
};

/// Gives files their names, all or none, and removes those named in `stale` (of which none need be
/// there). Whatever fails on the way, old files are as they were; an interrupt that comes during
/// the renames is too late. Old files are removed when all names are durable. If the process is
/// killed between two renames, some names are of new files and some of old ones. Errors: as
/// OutputFile's; if the old state cannot be restored, also where each file is then.
void PublishTogether(const std::vector<OutputFile*>& files, const std::vector<std::string>& stale);

/// A whole file from bytes in memory.
void WriteOutput(const std::string& path, std::string_view bytes, Existing existing);

/// Throws the error of a call on an output. `needed_bytes`: 0 if unknown.
[[noreturn]] void FailOutput(std::string_view action, const std::string& path, int error,
                             int64_t needed_bytes);

/// Throws if fewer bytes are free where `path` is to be; does nothing where that cannot be told.
void CheckFree(const std::string& path, int64_t needed_bytes);

/// Renames; with kRefuse an existing `to` is an error.
void RenameUnsynced(const std::string& from, const std::string& to, Existing existing);

/// Also makes the name durable.
void RenameOutput(const std::string& from, const std::string& to, Existing existing);

/// Makes the names in a folder durable.
void SyncFolder(const std::string& path);

/// Whether anything has this name, if only a link to nothing.
bool NameIsTaken(const std::string& path);

/// Throws the error for an output that would replace `path`.
[[noreturn]] void RefuseExisting(const std::string& path);

/// A name beside `path` that is free and that no later output of `path` removes: for what was
/// there.
std::string ReplacedName(const std::string& path);

/// The folder that `path` is in; ".": the present one.
std::string FolderOf(const std::string& path);

}  // namespace fsdprun
