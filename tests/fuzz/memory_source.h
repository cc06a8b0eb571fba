#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::fuzz {

/// Bytes in memory. To read outside them is a fault of who reads, whatever the input.
class MemorySource : public fsdp::archive::ByteSource {
 public:
  explicit MemorySource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    FSDPRUN_CHECK(
        offset >= 0 && byte_count >= 0 && offset <= size() && byte_count <= size() - offset,
        "read outside the bytes");
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(byte_count));
  }

 private:
  const std::string bytes_;
};

}  // namespace fsdprun::fuzz
