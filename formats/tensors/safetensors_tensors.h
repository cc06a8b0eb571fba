#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "formats/tensors/tensor_source.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun {

/// The tensors of one safetensors file, or of a Hugging Face model folder (one file, or an index
/// and several). Errors: ConfigError; fsdp::archive::Error with the errno for what may pass.
class SafetensorsTensors : public TensorSource {
 public:
  explicit SafetensorsTensors(const std::filesystem::path& path);
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

 private:
  void Add(const std::string& name, const SafetensorsFile& file, const SafetensorsEntry& entry);

  std::unique_ptr<SafetensorsFile> file_;
  std::unique_ptr<SafetensorsModel> model_;
  std::map<std::string, SafetensorsModel::Located> located_;
};

/// The text of DCP_SHARDING_INFO, {tensor: {"saved_offsets": [...]}}: where a file's part of each
/// tensor begins. Errors: ConfigError naming `source` and the tensor.
std::map<std::string, std::vector<int64_t>> ParseShardOffsets(std::string_view text,
                                                              const std::string& source);

/// What torch's HuggingFaceStorageWriter(save_distributed=True) writes: each rank's parts of the
/// tensors in files of its own. The parts of a tensor must cover it; parts that several ranks have
/// are read once. Errors: ConfigError; one that names the file if one is missing between others. A
/// last file that is missing can be noticed only where a tensor is not covered.
class ShardedSafetensors : public TensorSource {
 public:
  explicit ShardedSafetensors(const std::filesystem::path& directory);
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override;

  /// Whether `directory` holds such files.
  static bool IsOne(const std::filesystem::path& directory);

 private:
  struct Part {
    fsdp::Box box;
    const SafetensorsFile* file = nullptr;
    int64_t begin = 0;  // bytes from the start of the file
  };
  void AddFile(const std::filesystem::path& path);
  void CheckWhole(const std::string& name);

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::vector<Part>> parts_;
};

}  // namespace fsdprun
