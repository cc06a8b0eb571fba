#include "fsdpctl/ckpt/stored_objects.h"

#include <cstring>
#include <string_view>

#include "formats/checkpoint/error.h"

namespace fsdprun::ckpt {
namespace {

using checkpoint::BlobLocation;
using checkpoint::CheckpointError;

constexpr int64_t kObjectBytesMax = int64_t{1} << 30;

class MemorySource : public fsdp::archive::ByteSource {
 public:
  explicit MemorySource(std::string_view bytes) : bytes_(bytes) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(byte_count));
  }

 private:
  std::string_view bytes_;
};

}  // namespace

bool CheckArchive(const fsdp::archive::ByteSource& source, const std::string& what) {
  bool has_all = true;
  for (const auto& [name, record] : fsdp::archive::read_zip(source, what)) {
    fsdp::archive::check_crc(source, record, what + ", record " + name + ",");
    // That of no bytes is 0.
    has_all = has_all && (record.crc32 != 0 || record.byte_count == 0);
  }
  return has_all;
}

StoredObjects::StoredObjects(const checkpoint::OpenedCheckpoint& opened) : opened_(opened) {
  if (!opened.manifest) {
    return;
  }
  for (const auto& [name, file] : opened.manifest->files) {
    for (const checkpoint::ManifestItem& item : file.items) {
      items_[{name, item.offset}] = &item;
    }
  }
}

std::string StoredObjects::Read(const std::string& key) {
  const BlobLocation& blob = opened_.metadata.objects.at(key);
  const std::string path = opened_.path + "/" + blob.file;
  if (blob.length > kObjectBytesMax) {
    throw CheckpointError("cannot read the object " + key + " of " + path + ": its " +
                          std::to_string(blob.length) + " bytes are over the bound of " +
                          std::to_string(kObjectBytesMax));
  }
  const checkpoint::InputFile& file = files_.try_emplace(blob.file, path).first->second;
  std::string bytes(static_cast<size_t>(blob.length), '\0');
  file.Read(blob.offset, bytes.data(), blob.length);
  if (!opened_.manifest) {
    CheckArchive(MemorySource(bytes),
                 key + " in " + path + " at byte " + std::to_string(blob.offset));
    return bytes;
  }
  const auto item = items_.find({blob.file, blob.offset});
  if (item == items_.end() || item->second->length != blob.length ||
      checkpoint::HashBytes(bytes) != item->second->xxh3) {
    throw CheckpointError(path + " is damaged: the checksum of " + key + " at byte " +
                          std::to_string(blob.offset) + " does not match " +
                          checkpoint::kManifestFile +
                          "; fsdpctl ckpt verify names all that is damaged");
  }
  return bytes;
}

}  // namespace fsdprun::ckpt
