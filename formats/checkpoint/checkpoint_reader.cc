#include "formats/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <limits>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/torch_blob.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::Box;
using fsdp::archive::ZipRecord;
using nlohmann::json;

constexpr int64_t kMetadataBytesMax = int64_t{256} << 20;
// So small a blob is read at once, whatever is needed of it.
constexpr int64_t kVerifiedAlwaysBytes = int64_t{64} << 10;

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

std::string WhatOf(const std::string& key, const OpenedCheckpoint& opened,
                   const BlobLocation& blob) {
  return key + " in " + opened.path + "/" + blob.file;
}

/// What `boxes`, one behind the other in `out`, want of a blob whose data are those of `stored` and
/// begin at `data_offset`. In the order of the blob.
std::vector<WantedBytes> WantedOf(const std::vector<Box>& boxes, const Box& stored,
                                  int64_t data_offset, int64_t element_bytes, char* out) {
  std::vector<WantedBytes> wanted;
  for (const Box& box : boxes) {
    if (const std::optional<Box> part = fsdp::plan::intersect(box, stored)) {
      fsdp::plan::for_each_run(*part, stored, box, [&](int64_t from, int64_t to, int64_t numel) {
        wanted.push_back(
            {data_offset + from * element_bytes, numel * element_bytes, out + to * element_bytes});
      });
    }
    out += fsdp::plan::numel_of(box) * element_bytes;
  }
  std::sort(wanted.begin(), wanted.end(),
            [](const WantedBytes& a, const WantedBytes& b) { return a.begin < b.begin; });
  return wanted;
}

int64_t BytesOf(const std::vector<WantedBytes>& wanted) {
  int64_t sum = 0;
  for (const WantedBytes& bytes : wanted) {
    sum += bytes.byte_count;
  }
  return sum;
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

CheckpointReader::CheckpointReader(const OpenedCheckpoint& opened, bool verify_blobs,
                                   PartialBlobs partial)
    : opened_(opened),
      verify_blobs_(verify_blobs || !opened.manifest.has_value()),
      partial_(partial) {
  if (!verify_blobs_ || !opened.manifest) {
    return;
  }
  for (const auto& [name, file] : opened.manifest->files) {
    for (const ManifestItem& item : file.items) {
      items_[{name, item.offset}] = &item;
    }
  }
}

const InputFile& CheckpointReader::FileOf(const BlobLocation& blob) {
  return files_.try_emplace(blob.file, opened_.path + "/" + blob.file).first->second;
}

void CheckpointReader::CompareWithManifest(const std::string& key, const BlobLocation& blob,
                                           const BlobSource& source,
                                           const std::vector<WantedBytes>& wanted) {
  const auto item = items_.find({blob.file, blob.offset});
  StreamHash hash;
  source.ReadThrough(0, source.size(), wanted, scratch_,
                     [&](const char* data, size_t byte_count) { hash.Add(data, byte_count); });
  if (item == items_.end() || item->second->length != blob.length ||
      hash.Digest() != item->second->xxh3) {
    throw CheckpointError(opened_.path + "/" + blob.file + " is damaged: the checksum of " + key +
                          " does not match");
  }
}

void CheckpointReader::ReadVerified(const std::string& key, const BlobLocation& blob,
                                    const BlobSource& source, const ZipRecord& record,
                                    const std::vector<WantedBytes>& wanted) {
  if (opened_.manifest) {
    CompareWithManifest(key, blob, source, wanted);
  } else if (record.crc32 == 0) {
    source.ReadParts(wanted, scratch_);
    unchecked_count_ += record.byte_count > 0 ? 1 : 0;
  } else {
    uint32_t crc = 0;
    source.ReadThrough(record.data_offset, record.data_offset + record.byte_count, wanted, scratch_,
                       [&](const char* data, size_t byte_count) {
                         crc = fsdp::archive::update_crc32(crc, data, byte_count);
                       });
    if (crc != record.crc32) {
      throw CheckpointError(WhatOf(key, opened_, blob) + " is damaged: its CRC-32 does not match");
    }
  }
  verified_.emplace(blob.file, blob.offset);
  deferred_.erase({blob.file, blob.offset});
}

void CheckpointReader::Verify(const std::string& key, const StoredChunk& chunk) {
  const BlobSource source(FileOf(chunk.blob), chunk.blob);
  const TensorBlob blob = ReadTensorFrame(source, WhatOf(key, opened_, chunk.blob));
  ReadVerified(key, chunk.blob, source, blob.record, {});
}

void CheckpointReader::ReadBox(const std::string& key, const Box& box, void* out) {
  ReadBoxes(key, {box}, out);
}

void CheckpointReader::ReadBoxes(const std::string& key, const std::vector<Box>& boxes, void* out) {
  const auto found = opened_.metadata.tensors.find(key);
  if (found == opened_.metadata.tensors.end()) {
    throw CheckpointError(opened_.path + " has no tensor " + key);
  }
  for (const StoredChunk& chunk : found->second.chunks) {
    const bool is_needed = std::any_of(boxes.begin(), boxes.end(), [&](const Box& box) {
      return fsdp::plan::intersect(box, chunk.box).has_value();
    });
    if (is_needed) {
      ReadChunk(key, found->second, chunk, boxes, static_cast<char*>(out));
    }
  }
}

void CheckpointReader::ReadChunk(const std::string& key, const StoredTensor& tensor,
                                 const StoredChunk& chunk, const std::vector<Box>& boxes,
                                 char* out) {
  const BlobSource source(FileOf(chunk.blob), chunk.blob);
  const std::string what = WhatOf(key, opened_, chunk.blob);
  const TensorBlob blob = ReadTensorFrame(source, what);
  const DTypeInfo& dtype = InfoOf(blob.dtype);
  if (blob.sizes != chunk.box.sizes || dtype.name != tensor.dtype) {
    throw CheckpointError(what + " has another shape or dtype than .metadata says");
  }
  const std::vector<WantedBytes> wanted =
      WantedOf(boxes, chunk.box, blob.data_offset, dtype.element_bytes, out);
  const BlobPlace place(chunk.blob.file, chunk.blob.offset);
  if (!verify_blobs_ || verified_.contains(place)) {
    source.ReadParts(wanted, scratch_);
  } else if (partial_ == PartialBlobs::kDefer && chunk.blob.length > kVerifiedAlwaysBytes &&
             BytesOf(wanted) < chunk.blob.length / 2) {
    source.ReadParts(wanted, scratch_);
    deferred_.insert(place);
  } else {
    ReadVerified(key, chunk.blob, source, blob.record, wanted);
  }
}

json CheckpointReader::ReadBlobObject(const std::string& key, const BlobLocation& blob) {
  const BlobSource source(FileOf(blob), blob);
  if (verify_blobs_ && opened_.manifest && !verified_.contains({blob.file, blob.offset})) {
    CompareWithManifest(key, blob, source, {});
    verified_.emplace(blob.file, blob.offset);
  }
  return UnpackObject(source, WhatOf(key, opened_, blob));
}

std::optional<json> CheckpointReader::ReadObject(const std::string& key) {
  const auto& objects = opened_.metadata.objects;
  if (const auto found = objects.find(key); found != objects.end()) {
    return ReadBlobObject(key, found->second);
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
    Insert(*whole, path, prefix.size(), ReadBlobObject(item, found->second), item, room);
  }
  return whole;
}

}  // namespace fsdprun::checkpoint
