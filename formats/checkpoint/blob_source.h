#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/file_system.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::checkpoint {

/// Bytes of a blob that are wanted: `byte_count` from `begin` on go to `out`.
struct WantedBytes {
  int64_t begin = 0;
  int64_t byte_count = 0;
  char* out = nullptr;
};

/// One blob of an open file. Its two ends are read at once: what says where its data lie is there,
/// in many small records.
class BlobSource : public fsdp::archive::ByteSource {
 public:
  /// `file` outlives this object. Errors: CheckpointError.
  BlobSource(const InputFile& file, const BlobLocation& blob);
  int64_t size() const override { return length_; }
  void read(int64_t offset, void* out, int64_t byte_count) const override;

  /// Reads [begin, end) once and in order, in pieces that go through `scratch` to where they are
  /// wanted. `wanted`: in the order of `begin`, disjoint, within the range. `see` gets each piece
  /// while it is in the cache. Errors: CheckpointError.
  void ReadThrough(int64_t begin, int64_t end, const std::vector<WantedBytes>& wanted,
                   std::string& scratch,
                   const std::function<void(const char* data, size_t byte_count)>& see) const;

  /// Reads what is wanted and nothing else, but for gaps that are too small to be worth a read of
  /// their own. As above.
  void ReadParts(const std::vector<WantedBytes>& wanted, std::string& scratch) const;

 private:
  const InputFile& file_;
  int64_t offset_ = 0;
  int64_t length_ = 0;
  std::string head_;
  std::string tail_;
};

}  // namespace fsdprun::checkpoint
