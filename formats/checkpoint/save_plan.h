#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/checkpoint/dtype.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun::checkpoint {

/// One rank's part of a tensor: disjoint boxes, whose elements follow each other in its memory.
struct SliceInfo {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  std::vector<fsdp::Box> boxes;
};

/// One blob to be written by a rank.
struct PlannedChunk {
  size_t slice = 0;  // index into the rank's slices
  fsdp::Box box;
  int64_t begin = 0;  // of its elements, which are contiguous there, in the slice's memory
};

/// Divides the work: `ranks[r]` are rank r's slices; the result has, per rank, what it writes and
/// in which order. A pure function, so every rank computes the same. Of ranks that hold the same
/// boxes the lowest writes them; they are cut into boxes of at most `chunk_bytes_max`. Errors:
/// CheckpointError naming key and rank if the ranks disagree about a tensor, if parts overlap
/// without being equal, if elements are missing, or if one rank has a part twice.
std::vector<std::vector<PlannedChunk>> PlanSave(const std::vector<std::vector<SliceInfo>>& ranks,
                                                int64_t chunk_bytes_max);

/// Compact form for the exchange between ranks.
std::string EncodeSlices(const std::vector<SliceInfo>& slices);
std::vector<SliceInfo> DecodeSlices(const std::string& bytes);

}  // namespace fsdprun::checkpoint
