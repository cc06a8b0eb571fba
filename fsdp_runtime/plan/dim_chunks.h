#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::plan {

/// A half-open range of elements or indices.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const Range&) const = default;
};

/// A parameter that is divided along one dimension as torch.chunk does: seen as [outer, extent,
/// inner], where a rank has up to `chunk` indices of the middle, later ranks fewer or none, in
/// memory for outer * chunk * inner elements. What it has lies at the beginning of that, in
/// row-major order.
struct DimChunks {
  int64_t dim = 0;
  int64_t outer = 1;         // elements of the dimensions before it
  int64_t extent = 0;        // of the dimension
  int64_t inner = 1;         // elements of the dimensions behind it
  int64_t chunk = 0;         // ceil(extent / ranks)
  int64_t shard_offset = 0;  // of the memory, in every rank's shard

  int64_t padded_numel() const { return outer * chunk * inner; }
  bool operator==(const DimChunks&) const = default;
};

/// Of a parameter of `shape`, without place. Errors: std::invalid_argument on ranks < 1, and if
/// there is no such dimension.
DimChunks divide_along(const std::vector<int64_t>& shape, int64_t dim, int64_t ranks);

/// The indices that `rank` has, and how many elements.
Range indices_of_rank(const DimChunks& chunks, int64_t rank);
int64_t numel_of_rank(const DimChunks& chunks, int64_t rank);

/// Ranks that have equally many indices.
struct ChunkBlock {
  int64_t first_rank = 0;
  int64_t ranks = 0;
  int64_t rows = 0;  // indices per rank, not 0
  bool operator==(const ChunkBlock&) const = default;
};

/// Of all ranks that have some, in order: those with a full chunk, and the one with fewer.
std::vector<ChunkBlock> blocks_of(const DimChunks& chunks);

}  // namespace fsdp::plan
