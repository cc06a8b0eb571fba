#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace fsdprun::worker {

/// The content of a file from its start to its end, decompressed. Thread: one.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// Up to `capacity` bytes, at least one but at the end, where it is 0. Errors: ConfigError naming
  /// file, offset in it and cause: it cannot be read, is damaged or ends early.
  virtual size_t Read(char* out, size_t capacity) = 0;
  /// How many bytes of the file, as it is on disk, have been read.
  virtual int64_t file_bytes_read() const = 0;
};

/// Reads a file as it is. A read that waits, as of a pipe, ends with StopOutputs(). Errors:
/// ConfigError naming path and cause; fsdp::archive::Error then.
std::unique_ptr<ByteStream> OpenPlainStream(const std::string& path);

/// Decompresses what `raw` gives, if `path`, its name in errors, ends with .gz (gzip) or .zst
/// (Zstandard); else returns it. Memory: 1 MiB, for .zst up to 128 MiB where the file asks for it.
std::unique_ptr<ByteStream> Decompressed(std::unique_ptr<ByteStream> raw, const std::string& path);

/// Decompresses a file whose name ends with .gz (gzip) or .zst (Zstandard). Errors: ConfigError
/// naming path and cause. Memory: 1 MiB, for .zst up to 128 MiB where the file asks for it.
std::unique_ptr<ByteStream> OpenByteStream(const std::string& path);

/// The size of a regular file; 0 for anything else, such as a pipe, of which nobody knows. Errors:
/// ConfigError if there is none at `path`, or a folder.
int64_t FileBytes(const std::string& path);

}  // namespace fsdprun::worker
