#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "formats/checkpoint/rank_file.h"
#include "formats/checkpoint/save_plan.h"
#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// The contents of one checkpoint, as one rank holds them, with all that writing them needs.
struct Snapshot {
  int64_t step = 0;
  int64_t tokens = 0;
  std::string run;
  std::vector<SliceInfo> slices;
  /// One per slice: contiguous, on the CPU. Those that were there already share their memory with
  /// the state.
  std::vector<at::Tensor> host;
  /// Rank 0's.
  std::vector<BlobToWrite> objects;
};

/// Copies what is on a device to the host. Errors: CheckpointError naming what cannot be stored.
Snapshot TakeSnapshot(int64_t step, const State& state, bool is_rank0);

/// The objects and then the chunks, which refer to the snapshot's memory.
std::vector<BlobToWrite> BlobsOf(const Snapshot& snapshot, const std::vector<PlannedChunk>& chunks);

}  // namespace fsdprun::checkpoint
