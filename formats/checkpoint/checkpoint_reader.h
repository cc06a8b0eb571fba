#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::checkpoint {

/// A checkpoint whose structure has been verified: `.metadata` decodes, fsdprun.json (if there is
/// one) is intact and describes `.metadata`, and, if asked, every file is there in the right size.
struct OpenedCheckpoint {
  std::string path;
  DcpMetadata metadata;
  std::optional<Manifest> manifest;  // absent in checkpoints that Python wrote
};

/// Whether presence and size of every file are checked. One rank does it; if all did, a thousand
/// ranks would open each other's thousand files.
enum class FilesThere { kCheck, kTrust };

/// Errors: CheckpointError naming the file that is missing or damaged.
OpenedCheckpoint OpenCheckpoint(const std::string& path, FilesThere files = FilesThere::kCheck);

/// Compares one whole file with its checksum. Errors: CheckpointError naming the file and, where
/// known, the damaged items.
void VerifyFile(const std::string& path, const std::string& name, const ManifestFile& expected);

/// Reads tensors and objects from an opened checkpoint, and only the bytes that are needed.
/// Thread: one.
class CheckpointReader {
 public:
  /// verify_blobs: compare every blob with its checksum before it is used; not needed when
  /// VerifyFile has been run. Without fsdprun.json every record is compared with the archive's own
  /// CRC-32 instead. `opened` must outlive the reader.
  CheckpointReader(const OpenedCheckpoint& opened, bool verify_blobs);
  ~CheckpointReader();

  /// Copies the elements of `box` of the tensor `key` to `out`, row-major, in the stored dtype.
  /// Errors: CheckpointError naming key and file.
  void ReadBox(const std::string& key, const fsdp::Box& box, void* out);

  /// The bytes item `key`; where Python has flattened it (`key`.0.lr, ...), rebuilt from the
  /// planner's paths. nullopt if there is neither.
  std::optional<nlohmann::json> ReadObject(const std::string& key);

 private:
  class FileSource;
  FileSource Source(const std::string& key, const BlobLocation& blob);
  void VerifyRecord(const fsdp::archive::ByteSource& source, const BlobLocation& blob,
                    const fsdp::archive::ZipRecord& record, const std::string& what);
  void ReadChunk(const std::string& key, const StoredTensor& tensor, const StoredChunk& chunk,
                 const fsdp::Box& part, const fsdp::Box& wanted, char* out);

  const OpenedCheckpoint& opened_;
  bool verify_blobs_;
  std::map<std::string, InputFile> files_;
  std::map<std::pair<std::string, int64_t>, const ManifestItem*> items_;
  std::set<std::pair<std::string, int64_t>> verified_;
};

}  // namespace fsdprun::checkpoint
