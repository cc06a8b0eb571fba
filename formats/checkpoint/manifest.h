#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::checkpoint {

inline constexpr char kManifestFile[] = "fsdprun.json";
inline constexpr char kMetadataFile[] = ".metadata";
inline constexpr int64_t kManifestBytesMax = int64_t{256} << 20;
/// Of every number in it but the generation.
inline constexpr int64_t kManifestNumberMax = int64_t{1} << 53;

/// One blob of a file.
struct ManifestItem {
  std::string key;
  int64_t offset = 0;
  int64_t length = 0;
  std::string xxh3;
  bool operator==(const ManifestItem&) const = default;
};

struct ManifestFile {
  int64_t bytes = 0;
  std::string xxh3;
  std::vector<ManifestItem> items;
  bool operator==(const ManifestFile&) const = default;
};

/// fsdprun.json: what DCP's format has no field for. It holds a checksum of its own content and one
/// of every other file.
struct Manifest {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t world_size = 0;
  uint64_t generation = 0;
  /// Increases with every checkpoint published in a directory: the order of publication, whatever
  /// the steps.
  int64_t sequence = 0;
  std::string job_id;
  /// Of the run that it continues, see State. Older ones do not have it: then the job id.
  std::string run;
  std::map<std::string, ManifestFile> files;  // `.metadata` included
  bool operator==(const Manifest&) const = default;
};

std::string EncodeManifest(const Manifest& manifest);

/// Errors: CheckpointError, starting with `what`, on malformed or deeply nested JSON, an unknown
/// schema version, missing fields, impossible numbers, file names with a path or a wrong checksum.
Manifest DecodeManifest(std::string_view text, const std::string& what);

}  // namespace fsdprun::checkpoint
