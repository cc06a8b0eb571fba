#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/blob_source.h"
#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
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

// Note [Verified while it is read]
// A blob is compared with its checksum while its bytes go to where they are wanted: each piece is
// hashed when it is read, and the blob is refused if the whole is not what was written. So a load
// reads every byte once. What was loaded before that is then worthless, and who asked for it must
// load something else, or end.
// Checksums are of whole blobs. Of one that was written as one piece and is read by many ranks,
// each would read all of it for its own small part. So who reads less than half of a blob may leave
// its verification to others (PartialBlobs::kDefer): when all have read, what nobody has verified
// is divided among them (Verify), and only then is anything of it used.

/// The file and the offset of a blob.
using BlobPlace = std::pair<std::string, int64_t>;

/// What becomes of the verification of a blob of which less than half is read.
enum class PartialBlobs { kVerify, kDefer };

/// Reads tensors and objects from an opened checkpoint, and, but for what is read to compare
/// checksums, only the bytes that are needed. Thread: one.
class CheckpointReader {
 public:
  /// verify_blobs: compare every blob with its checksum; not needed when VerifyFile has been run.
  /// Without fsdprun.json every record is compared with the archive's own CRC-32 instead, if it has
  /// one. `opened` must outlive the reader.
  CheckpointReader(const OpenedCheckpoint& opened, bool verify_blobs,
                   PartialBlobs partial = PartialBlobs::kVerify);

  /// Copies the elements of the boxes of the tensor `key` to `out`, one box behind the other, each
  /// row-major, in the stored dtype. The boxes are disjoint. Errors: CheckpointError naming key and
  /// file; `out` is then partly filled, perhaps with what is damaged.
  void ReadBoxes(const std::string& key, const std::vector<fsdp::Box>& boxes, void* out);
  void ReadBox(const std::string& key, const fsdp::Box& box, void* out);

  /// The bytes item `key`; where Python has flattened it (`key`.0.lr, ...), rebuilt from the
  /// planner's paths. nullopt if there is neither.
  std::optional<nlohmann::json> ReadObject(const std::string& key);

  /// Blobs that were read and are not verified; empty without PartialBlobs::kDefer.
  const std::set<BlobPlace>& deferred() const { return deferred_; }
  /// Blobs that were found to be what was written.
  const std::set<BlobPlace>& verified() const { return verified_; }
  /// How many blobs were read that have no checksum, though they were to be compared.
  int64_t unchecked_count() const { return unchecked_count_; }
  /// Reads all of a chunk of `key`, to compare it only. Errors: CheckpointError.
  void Verify(const std::string& key, const StoredChunk& chunk);

 private:
  const InputFile& FileOf(const BlobLocation& blob);
  void ReadChunk(const std::string& key, const StoredTensor& tensor, const StoredChunk& chunk,
                 const std::vector<fsdp::Box>& boxes, char* out);
  void ReadVerified(const std::string& key, const BlobLocation& blob, const BlobSource& source,
                    const fsdp::archive::ZipRecord& record, const std::vector<WantedBytes>& wanted);
  void CompareWithManifest(const std::string& key, const BlobLocation& blob,
                           const BlobSource& source, const std::vector<WantedBytes>& wanted);
  nlohmann::json ReadBlobObject(const std::string& key, const BlobLocation& blob);

  const OpenedCheckpoint& opened_;
  const bool verify_blobs_;
  const PartialBlobs partial_;
  std::map<std::string, InputFile> files_;
  std::map<BlobPlace, const ManifestItem*> items_;
  std::set<BlobPlace> verified_;
  std::set<BlobPlace> deferred_;
  int64_t unchecked_count_ = 0;
  std::string scratch_;
};

}  // namespace fsdprun::checkpoint
