#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "formats/json/strict_json.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::worker {

/// Reading a data file failed while it was in use, such as one that has become shorter. what() is
/// one line naming file, offset and what to do.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A data file has an id that the model has no embedding for. It is the same at every start, so a
/// restart cannot help; only the ranks that read there know of it.
class TokenIdError : public ConfigError {
 public:
  using ConfigError::ConfigError;
};

/// A file that is read by position; closed on destruction. Not a memory map: of a file that is
/// truncated while it is mapped, the process would learn by a SIGBUS that names nothing.
/// Thread: const methods are safe from many.
class DataFile : public fsdp::archive::ByteSource {
 public:
  /// Errors: ConfigError naming path and cause.
  explicit DataFile(const std::string& path);
  ~DataFile() override;
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  const std::string& path() const { return path_; }
  /// When it was opened.
  int64_t size() const override { return size_; }
  /// Precondition: inside size(). Errors: DataError.
  void read(int64_t offset, void* out, int64_t byte_count) const override;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace fsdprun::worker
