#include "fsdp_runtime/plan/dim_chunks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace fsdp::plan {

DimChunks divide_along(const std::vector<int64_t>& shape, int64_t dim, int64_t ranks) {
  const auto dims = static_cast<int64_t>(shape.size());
  if (ranks < 1 || dim < 0 || dim >= dims) {
    throw std::invalid_argument("divide_along: dimension " + std::to_string(dim) + " of " +
                                std::to_string(dims) + ", " + std::to_string(ranks) + " ranks");
  }
  DimChunks chunks;
  chunks.dim = dim;
  for (int64_t d = 0; d < dims; ++d) {
    (d < dim ? chunks.outer : chunks.inner) *= d == dim ? 1 : shape[static_cast<size_t>(d)];
  }
  chunks.extent = shape[static_cast<size_t>(dim)];
  chunks.chunk = (chunks.extent + ranks - 1) / ranks;
  return chunks;
}

Range indices_of_rank(const DimChunks& chunks, int64_t rank) {
  const int64_t begin = std::min(rank * chunks.chunk, chunks.extent);
  return {begin, std::min(begin + chunks.chunk, chunks.extent)};
}

int64_t numel_of_rank(const DimChunks& chunks, int64_t rank) {
  const Range held = indices_of_rank(chunks, rank);
  return chunks.outer * (held.end - held.begin) * chunks.inner;
}

std::vector<ChunkBlock> blocks_of(const DimChunks& chunks) {
  if (chunks.outer * chunks.extent * chunks.inner == 0) {
    return {};
  }
  const int64_t full = chunks.extent / chunks.chunk;
  const int64_t rest = chunks.extent % chunks.chunk;
  std::vector<ChunkBlock> blocks{{0, full, chunks.chunk}};
  if (rest > 0) {
    blocks.push_back({full, 1, rest});
  }
  return blocks;
}

}  // namespace fsdp::plan
