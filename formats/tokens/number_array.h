#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun {

/// `count` little-endian numbers of a file from `offset`, at any alignment, read one after the
/// other. Memory: 64 KiB.
template <class Number>
class NumberArray {
 public:
  /// Precondition: inside the file.
  NumberArray(const fsdp::archive::ByteSource& file, int64_t offset, int64_t count)
      : file_(file), offset_(offset), count_(count) {}

  /// Precondition: it has another one. Errors: as the file's.
  Number Next() {
    if (next_ == read_) {
      Fill();
    }
    Number number;
    std::memcpy(&number, buffer_.data() + (next_ - begin_) * kBytes, sizeof number);
    ++next_;
    return number;
  }
  /// How many have been read.
  int64_t position() const { return next_; }
  /// "NAME[7] = 12 at offset 3456", of the number that was read last.
  std::string Describe(const char* name, Number value) const {
    return std::string(name) + "[" + std::to_string(next_ - 1) + "] = " + std::to_string(value) +
           " at offset " + std::to_string(offset_ + (next_ - 1) * kBytes);
  }

 private:
  static constexpr int64_t kBytes = sizeof(Number);
  static constexpr int64_t kBufferBytes = 64 * 1024;

  void Fill() {
    begin_ = read_;
    const int64_t bytes = std::min(kBufferBytes, (count_ - read_) * kBytes);
    buffer_.resize(static_cast<size_t>(bytes));
    file_.read(offset_ + read_ * kBytes, buffer_.data(), bytes);
    read_ += bytes / kBytes;
  }

  const fsdp::archive::ByteSource& file_;
  const int64_t offset_;
  const int64_t count_;
  std::vector<uint8_t> buffer_;
  // Of numbers: what the buffer begins with, what has been read into it, and the next one.
  int64_t begin_ = 0;
  int64_t read_ = 0;
  int64_t next_ = 0;
};

}  // namespace fsdprun
