#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/dtype.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"

namespace fsdprun::checkpoint {

/// One blob of a rank's file: a tensor piece (data) or a finished object blob (object).
struct BlobToWrite {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  const void* data = nullptr;
  std::string object;  // used when `data` is null
};

/// "__<rank>_0.distcp"
std::string RankFileName(int64_t rank);

/// Writes the blobs one after the other to `directory`/RankFileName(rank), syncs file and
/// directory, and returns sizes and checksums. Writes no file for no blobs. Errors: CheckpointError
/// naming the path, for a full disk also the bytes needed and free.
ManifestFile WriteRankFile(FileSystem& file_system, const std::string& directory, int64_t rank,
                           const std::vector<BlobToWrite>& blobs);

}  // namespace fsdprun::checkpoint
