#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/json/strict_json.h"

namespace fsdprun {

/// One tensor of a safetensors file.
struct SafetensorsEntry {
  std::string dtype;  // as spelled in the file: "F32", "BF16", ...
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the file
  int64_t end = 0;
};

/// Parsed and validated header. Source: the format description of huggingface/safetensors.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

/// Validates everything that the format requires: the header is one JSON object of known fields
/// without duplicate keys, sizes equal shape times element size without overflow, and the tensors
/// tile the rest of the file without gaps or overlaps. `text` is the header, `data_begin` the
/// offset of the first byte after it. Errors: ConfigError naming file, tensor and defect. Memory:
/// proportional to the text.
SafetensorsHeader ParseSafetensorsHeader(std::string_view text, int64_t data_begin,
                                         int64_t file_bytes, const std::string& source);

/// Bits of one element, 0 for a name that the format does not know.
int64_t SafetensorsDtypeBits(std::string_view dtype);

/// An open safetensors file. Reads are pread: safe from many threads.
class SafetensorsFile {
 public:
  /// Errors: ConfigError naming file and defect; fsdp::archive::Error with the errno for what may
  /// pass.
  explicit SafetensorsFile(const std::filesystem::path& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const SafetensorsHeader& header() const { return header_; }
  /// Reads `count` bytes at absolute offset `begin`. Errors: ConfigError if the file got shorter or
  /// cannot be read; fsdp::archive::Error with the errno for what may pass.
  void Read(int64_t begin, int64_t count, void* out) const;

 private:
  std::string path_;
  int fd_ = -1;
  SafetensorsHeader header_;
};

/// The weights of an HF model directory: model.safetensors, or the files that
/// model.safetensors.index.json names.
class SafetensorsModel {
 public:
  struct Located {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  /// Errors: ConfigError, also for a file name outside the directory, a tensor that is in the index
  /// but not in its file, or one in two files; fsdp::archive::Error with the errno for what may
  /// pass.
  explicit SafetensorsModel(const std::filesystem::path& directory);

  const std::map<std::string, Located>& tensors() const { return tensors_; }

 private:
  void AddFile(const std::filesystem::path& path);

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Located> tensors_;
};

}  // namespace fsdprun
