#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp_runtime/plan/box.h"
#include "worker/checkpoint/dtype.h"

namespace fsdprun::worker::checkpoint {

/// One rank's slice of a tensor: the range [begin, end) of its row-major elements.
struct SliceInfo {
  std::string key;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

/// One blob to be written by a rank.
struct PlannedChunk {
  size_t slice = 0;  // index into the rank's slices
  fsdp::plan::Box box;
  int64_t begin = 0;  // of the box's elements, which are contiguous in the tensor
  int64_t end = 0;
};

/// Divides the work: `ranks[r]` are rank r's slices; the result has, per rank, what it writes and
/// in which order. A pure function, so every rank computes the same. A range that several ranks
/// hold is written by the lowest; pieces are cut into boxes of at most `chunk_bytes_max`.
/// Errors: CheckpointError naming key and rank if the ranks disagree about a tensor, if ranges
/// overlap without being equal, if elements are missing, or if one rank has a range twice.
std::vector<std::vector<PlannedChunk>> PlanSave(const std::vector<std::vector<SliceInfo>>& ranks,
                                                int64_t chunk_bytes_max);

/// Compact form for the exchange between ranks.
std::string EncodeSlices(const std::vector<SliceInfo>& slices);
std::vector<SliceInfo> DecodeSlices(const std::string& bytes);

}  // namespace fsdprun::worker::checkpoint
