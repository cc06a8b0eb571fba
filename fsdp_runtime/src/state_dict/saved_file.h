#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "fsdp_runtime/archive/saved_tensor.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/shm/mapping.h"

namespace fsdp {

/// A file that torch.save has written, open for reading. What is read is compared with its
/// checksum. Errors of all: archive::Error, starting with the path.
class SavedFile : public archive::ByteSource {
 public:
  /// Reads the directory of the archive.
  explicit SavedFile(const std::string& path);

  const std::string& path() const { return path_; }
  /// Of its object.
  std::string pickle() const;
  /// On the CPU. Those that share a record share its memory.
  at::Tensor tensor(const archive::SavedTensor& saved);

  int64_t size() const override { return bytes_; }
  void read(int64_t offset, void* out, int64_t byte_count) const override;

 private:
  /// A record of at most `bytes_max`.
  std::string small_record(const std::string& name, int64_t bytes_max) const;
  const archive::ZipRecord& record(const std::string& name) const;

  const std::string path_;
  const shm::Fd fd_;
  int64_t bytes_ = 0;
  std::map<std::string, archive::ZipRecord> records_;
  std::map<std::string, c10::Storage> storages_;
};

}  // namespace fsdp
