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
  /// One per slice: contiguous, on the CPU once CopyToHost or a Staging has seen to it. Until then
  /// they share their memory with the state.
  std::vector<at::Tensor> host;
  /// Rank 0's.
  std::vector<BlobToWrite> objects;
};

/// Of `state`, whose tensors it shares. Errors: CheckpointError naming what cannot be stored.
Snapshot TakeSnapshot(int64_t step, const State& state, bool is_rank0);

/// Copies what is on a device; what is on the host already stays the state's.
void CopyToHost(Snapshot& snapshot);

/// Memory of the host for copies of a whole snapshot, from save to save. Thread: one at a time.
class Staging {
 public:
  /// Copies all tensors, so that the state may change afterwards. Blocks the host until they are
  /// there.
  void Copy(Snapshot& snapshot);

 private:
  /// By slice; as they were of the last snapshot.
  std::vector<at::Tensor> buffers_;
};

/// The objects and then the chunks, which refer to the snapshot's memory.
std::vector<BlobToWrite> BlobsOf(const Snapshot& snapshot, const std::vector<PlannedChunk>& chunks);

}  // namespace fsdprun::checkpoint
