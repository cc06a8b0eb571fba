#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fsdprun::worker {

/// Size of the vocabulary of byte tokens.
inline constexpr int64_t kByteTokens = 256;

/// Read-only memory map of one file; unmapped on destruction.
class MappedFile {
 public:
  /// Errors: ConfigError naming path and cause; an empty file maps to no bytes.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

/// The files of a data set, in the order given, as one stream of byte tokens: token i is the value
/// (0..255) of byte i. There is no separator between files.
/// Memory: maps only; the page cache is shared by the ranks of a host. Thread: const methods are
/// safe from many.
class TokenStream {
 public:
  explicit TokenStream(const std::vector<std::string>& paths);

  int64_t size() const { return size_; }
  /// Number of windows of seq_len inputs; each needs one more token for its last target.
  int64_t window_count(int64_t seq_len) const { return size_ <= 0 ? 0 : (size_ - 1) / seq_len; }
  /// Writes tokens [begin, begin + count) to `out`. Precondition: inside the stream.
  void CopyTokens(int64_t begin, int64_t count, int64_t* out) const;

 private:
  struct Part {
    std::unique_ptr<MappedFile> file;
    int64_t begin = 0;
  };
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

}  // namespace fsdprun::worker
