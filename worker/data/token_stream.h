#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fsdprun::worker {

/// Size of the vocabulary of byte tokens.
inline constexpr int64_t kByteTokens = 256;

/// Reading a data file failed while it was in use, such as one that has become shorter. what() is
/// one line naming file, offset and what to do.
class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A file that is read by position; closed on destruction. Not a memory map: of a file that is
/// truncated while it is mapped, the process would learn by a SIGBUS that names nothing.
class DataFile {
 public:
  /// Errors: ConfigError naming path and cause.
  explicit DataFile(const std::string& path);
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;

  /// When it was opened.
  int64_t size() const { return size_; }
  /// Precondition: inside size(). Errors: DataError.
  void Read(int64_t offset, int64_t count, uint8_t* out) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// The files of a data set, in the order given, as one stream of byte tokens: token i is the value
/// (0..255) of byte i. There is no separator between files.
/// Memory: none to speak of; the page cache is shared by the ranks of a host. Thread: const methods
/// are safe from many.
class TokenStream {
 public:
  explicit TokenStream(const std::vector<std::string>& paths);

  int64_t size() const { return size_; }
  /// Number of windows of seq_len inputs; each needs one more token for its last target.
  int64_t window_count(int64_t seq_len) const { return size_ <= 0 ? 0 : (size_ - 1) / seq_len; }
  /// Writes tokens [begin, begin + count) to `out`. Precondition: inside the stream. Errors:
  /// DataError.
  void CopyTokens(int64_t begin, int64_t count, int64_t* out) const;
  /// The same as bytes.
  void CopyBytes(int64_t begin, int64_t count, uint8_t* out) const;

 private:
  struct Part {
    std::unique_ptr<DataFile> file;
    int64_t begin = 0;
  };
  std::vector<Part> parts_;
  int64_t size_ = 0;
};

}  // namespace fsdprun::worker
