#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "formats/checkpoint/checkpoint_reader.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::ckpt {

/// Compares all records of an archive with their CRC-32. Returns whether all of them have one:
/// torch.save leaves it out where torch.serialization.set_crc32_options says so. Errors:
/// CheckpointError, starting with `what`.
bool CheckArchive(const fsdp::archive::ByteSource& source, const std::string& what);

/// The Python objects of a checkpoint as the bytes of their archives, which are never unpickled.
/// Thread: one.
class StoredObjects {
 public:
  /// `opened` must outlive this.
  explicit StoredObjects(const checkpoint::OpenedCheckpoint& opened);

  /// The bytes of the object `key`, which is one of the checkpoint, after their comparison with the
  /// checksum in fsdprun.json, or else with the archive's own CRC-32. Errors: CheckpointError
  /// naming key and file if they are damaged or more than 1 GiB.
  std::string Read(const std::string& key);

 private:
  const checkpoint::OpenedCheckpoint& opened_;
  std::map<std::string, checkpoint::InputFile> files_;
  std::map<std::pair<std::string, int64_t>, const checkpoint::ManifestItem*> items_;
};

}  // namespace fsdprun::ckpt
