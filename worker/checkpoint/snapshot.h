#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <optional>
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

/// Memory of the host for copies of a whole snapshot, from save to save; for what is on a device,
/// pinned if it can be had. Thread: one at a time.
class Staging {
 public:
  /// Where a tensor is that is not on the host.
  using DeviceOf = std::optional<c10::Device> (*)(const at::Tensor& tensor);
  /// `device_of`: another one for tests, whose devices are the host.
  explicit Staging(DeviceOf device_of = OwnDevice) : device_of_(device_of) {}

  /// In the thread that computes: what it has put on its stream until now comes before the copy.
  void Mark(const Snapshot& snapshot);
  /// Whether something of the snapshot that was marked is on a device.
  bool is_on_device() const { return computed_.has_value(); }
  /// Copies all tensors, so that the state may change afterwards; on a stream of its own if they
  /// are on a device. Blocks the host until they are there. In any thread.
  void Copy(Snapshot& snapshot);

 private:
  static std::optional<c10::Device> OwnDevice(const at::Tensor& tensor) {
    return tensor.is_cpu() ? std::nullopt : std::optional(tensor.device());
  }
  void CopyAll(Snapshot& snapshot, bool is_beside);

  const DeviceOf device_of_;

  /// What the copy waits for; absent: all is on the host.
  std::optional<c10::Event> computed_;
  /// By slice, as they were of the last snapshot; parts of a few larger ones.
  std::vector<at::Tensor> buffers_;
};

/// The objects and then the chunks, which refer to the snapshot's memory.
std::vector<BlobToWrite> BlobsOf(const Snapshot& snapshot, const std::vector<PlannedChunk>& chunks);

}  // namespace fsdprun::checkpoint
