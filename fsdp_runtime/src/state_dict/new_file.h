#pragma once

#include <fsdp/export.h>

#include <cstddef>
#include <string>

#include "fsdp_runtime/shm/mapping.h"

namespace fsdp {

/// A file that is there as a whole or not at all: it is written under another name in the same
/// folder, and renamed when it is on the disk. If it is not published, nothing is left of it.
class FSDP_API NewFile {
 public:
  /// Errors: TORCH_CHECK with the path and what the system says.
  explicit NewFile(std::string path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// An error is kept for publish(), and nothing more is written: who calls this may not be able to
  /// pass an exception on.
  void write(const void* data, size_t bytes) noexcept;
  /// Blocks until the file is on the disk under its name. Errors: as the constructor's.
  void publish();

 private:
  void check(const char* attempt) const;

  const std::string path_;
  const std::string temporary_;
  shm::Fd fd_;
  int error_ = 0;  // errno of the first failure
  bool is_published_ = false;
};

}  // namespace fsdp
