#include "formats/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <limits>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/torch_blob.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::Box;
using fsdp::archive::ByteSource;
using fsdp::archive::ZipRecord;
using nlohmann::json;

constexpr int64_t kMetadataBytesMax = int64_t{256} << 20;

void CheckSizes(const OpenedCheckpoint& opened) {
  std::map<std::string, int64_t> ends;
  const auto note = [&](const BlobLocation& blob) {
    if (!blob.file.empty()) {
      ends[blob.file] = std::max(ends[blob.file], blob.offset + blob.length);
    }
  };
  for (const auto& [key, blob] : opened.metadata.objects) {
    note(blob);
  }
  for (const auto& [key, tensor] : opened.metadata.tensors) {
    for (const StoredChunk& chunk : tensor.chunks) {
      note(chunk.blob);
    }
  }
  for (const auto& [name, end] : ends) {
    const InputFile file(opened.path + "/" + name);
    if (file.size() < end) {
      throw CheckpointError(file.path() + " is truncated: it has " + std::to_string(file.size()) +
                            " bytes, .metadata places data up to byte " + std::to_string(end));
    }
    if (opened.manifest && !opened.manifest->files.contains(name)) {
      throw CheckpointError(file.path() + " is not listed in " + kManifestFile);
    }
  }
}

void CheckListed(const OpenedCheckpoint& opened) {
  for (const auto& [name, expected] : opened.manifest->files) {
    const InputFile file(opened.path + "/" + name);
    if (file.size() != expected.bytes) {
      throw CheckpointError(file.path() + " is " +
                            (file.size() < expected.bytes ? "truncated" : "too long") +
                            ": it has " + std::to_string(file.size()) + " bytes, " + kManifestFile +
                            " says " + std::to_string(expected.bytes));
    }
  }
}

/// `room`: how many list entries may still be made; an index makes all those before it.
void Insert(json& root, const std::vector<PathPart>& path, size_t first, json value,
            const std::string& key, size_t& room) {
  json* place = &root;
  for (size_t i = first; i < path.size(); ++i) {
    if (const auto* index = std::get_if<int64_t>(&path[i])) {
      const size_t growth =
          *index < static_cast<int64_t>(place->size()) ? 0 : static_cast<size_t>(*index) + 1;
      if (*index < 0 || growth > room || !(place->is_null() || place->is_array())) {
        throw CheckpointError("the path of " + key + " in .metadata is not valid");
      }
      room -= growth == 0 ? 0 : growth - place->size();
      place = &(*place)[static_cast<size_t>(*index)];
    } else {
      if (!(place->is_null() || place->is_object())) {
        throw CheckpointError("the path of " + key + " in .metadata is not valid");
      }
      place = &(*place)[std::get<std::string>(path[i])];
    }
  }
  *place = std::move(value);
}

}  // namespace

OpenedCheckpoint OpenCheckpoint(const std::string& path, FilesThere files) {
  OpenedCheckpoint opened;
  opened.path = path;
  const std::string metadata_path = path + "/" + kMetadataFile;
  if (!FileExists(metadata_path)) {
    throw CheckpointError(path + " is not a complete checkpoint: it has no .metadata");
  }
  const std::string bytes = ReadWholeFile(metadata_path, kMetadataBytesMax);
  const std::string manifest_path = path + "/" + kManifestFile;
  if (FileExists(manifest_path)) {
    opened.manifest =
        DecodeManifest(ReadWholeFile(manifest_path, kManifestBytesMax), manifest_path);
    const auto expected = opened.manifest->files.find(kMetadataFile);
    if (expected == opened.manifest->files.end() || expected->second.xxh3 != HashBytes(bytes)) {
      throw CheckpointError(metadata_path + " is damaged: its checksum does not match " +
                            kManifestFile);
    }
  }
  opened.metadata = DecodeDcpMetadata(bytes, metadata_path);
  if (files == FilesThere::kCheck) {
    if (opened.manifest) {
      CheckListed(opened);
    }
    CheckSizes(opened);
  }
  return opened;
}

void VerifyFile(const std::string& path, const std::string& name, const ManifestFile& expected) {
  const InputFile file(path + "/" + name);
  if (file.size() == expected.bytes && HashFile(file, 0, file.size()) == expected.xxh3) {
    return;
  }
  std::string damaged;
  for (const ManifestItem& item : expected.items) {
    if (item.offset + item.length > file.size() ||
        HashFile(file, item.offset, item.length) != item.xxh3) {
      damaged += damaged.empty() ? ": item " : ", ";
      damaged += item.key;
      if (damaged.size() > 300) {
        damaged += ", ...";
        break;
      }
    }
  }
  throw CheckpointError(file.path() + " is damaged: its checksum does not match " + kManifestFile +
                        damaged);
}

/// One blob of an open file.
class CheckpointReader::FileSource : public ByteSource {
 public:
  FileSource(const InputFile& file, const BlobLocation& blob) : file_(file), blob_(blob) {}
  int64_t size() const override { return blob_.length; }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    file_.Read(blob_.offset + offset, out, byte_count);
  }

 private:
  const InputFile& file_;
  const BlobLocation& blob_;
};

CheckpointReader::CheckpointReader(const OpenedCheckpoint& opened, bool verify_blobs)
    : opened_(opened), verify_blobs_(verify_blobs && opened.manifest.has_value()) {
  if (!verify_blobs_) {
    return;
  }
  for (const auto& [name, file] : opened.manifest->files) {
    for (const ManifestItem& item : file.items) {
      items_[{name, item.offset}] = &item;
    }
  }
}

CheckpointReader::~CheckpointReader() = default;

CheckpointReader::FileSource CheckpointReader::Source(const std::string& key,
                                                      const BlobLocation& blob) {
  const std::string path = opened_.path + "/" + blob.file;
  const InputFile& file = files_.try_emplace(blob.file, path).first->second;
  const std::pair<std::string, int64_t> place(blob.file, blob.offset);
  if (verify_blobs_ && !verified_.contains(place)) {
    const auto item = items_.find(place);
    if (item == items_.end() || item->second->length != blob.length ||
        HashFile(file, blob.offset, blob.length) != item->second->xxh3) {
      throw CheckpointError(path + " is damaged: the checksum of " + key + " does not match");
    }
    verified_.insert(place);
  }
  return {file, blob};
}

void CheckpointReader::VerifyRecord(const ByteSource& source, const BlobLocation& blob,
                                    const ZipRecord& record, const std::string& what) {
  if (!opened_.manifest && verified_.emplace(blob.file, blob.offset).second) {
    check_crc(source, record, what);
  }
}

void CheckpointReader::ReadBox(const std::string& key, const Box& box, void* out) {
  const auto found = opened_.metadata.tensors.find(key);
  if (found == opened_.metadata.tensors.end()) {
    throw CheckpointError(opened_.path + " has no tensor " + key);
  }
  const StoredTensor& tensor = found->second;
  for (const StoredChunk& chunk : tensor.chunks) {
    if (const std::optional<Box> part = fsdp::plan::intersect(box, chunk.box)) {
      ReadChunk(key, tensor, chunk, *part, box, static_cast<char*>(out));
    }
  }
}

void CheckpointReader::ReadChunk(const std::string& key, const StoredTensor& tensor,
                                 const StoredChunk& chunk, const Box& part, const Box& wanted,
                                 char* out) {
  const FileSource source = Source(key, chunk.blob);
  const std::string what = key + " in " + opened_.path + "/" + chunk.blob.file;
  const TensorBlob blob = ReadTensorFrame(source, what);
  VerifyRecord(source, chunk.blob, blob.record, what);
  const DTypeInfo& dtype = InfoOf(blob.dtype);
  if (blob.sizes != chunk.box.sizes || dtype.name != tensor.dtype) {
    throw CheckpointError(what + " has another shape or dtype than .metadata says");
  }
  const int64_t bytes = dtype.element_bytes;
  fsdp::plan::for_each_run(part, chunk.box, wanted, [&](int64_t from, int64_t to, int64_t numel) {
    source.read(blob.data_offset + from * bytes, out + to * bytes, numel * bytes);
  });
}

std::optional<json> CheckpointReader::ReadObject(const std::string& key) {
  const auto read = [&](const std::string& item, const BlobLocation& blob) {
    return UnpackObject(Source(item, blob), item + " in " + opened_.path + "/" + blob.file);
  };
  const auto& objects = opened_.metadata.objects;
  if (const auto found = objects.find(key); found != objects.end()) {
    return read(key, found->second);
  }
  std::optional<json> whole;
  size_t room = 64 * opened_.metadata.paths.size();
  const std::vector<PathPart> prefix = PathOfKey(key);
  for (const auto& [item, path] : opened_.metadata.paths) {
    const auto found = objects.find(item);
    if (found == objects.end() || path.size() <= prefix.size() ||
        !std::equal(prefix.begin(), prefix.end(), path.begin())) {
      continue;
    }
    if (!whole) {
      whole.emplace();
    }
    Insert(*whole, path, prefix.size(), read(item, found->second), item, room);
  }
  return whole;
}

}  // namespace fsdprun::checkpoint
