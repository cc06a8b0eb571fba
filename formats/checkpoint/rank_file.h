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

/// How much is written until the disk is waited for. A save can be given up between two writes, and
/// not in a sync, which would take minutes for all that the memory has room for.
constexpr int64_t kWriteBackBytes = int64_t{64} << 20;

/// "__<rank>_0.distcp"
std::string RankFileName(int64_t rank);

/// Writes the blobs one after the other to `directory`/RankFileName(rank), syncs file and
/// directory, and returns sizes and checksums. Writes no file for no blobs. Errors: CheckpointError
/// naming the path, for a full disk also the bytes needed and free.
ManifestFile WriteRankFile(FileSystem& file_system, const std::string& directory, int64_t rank,
                           const std::vector<BlobToWrite>& blobs,
                           int64_t window_bytes = kWriteBackBytes);

}  // namespace fsdprun::checkpoint
