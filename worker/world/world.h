#pragma once

#include <c10/core/Device.h>
#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>

#include <cstdint>
#include <memory>

#include "worker/config/config.h"

namespace fsdprun::worker {

/// The ranks that work together, and this rank's place among them. It knows nothing of what they
/// train: it is formed before there is a model.
struct World {
  std::shared_ptr<fsdp::Collectives> group;
  /// Null until ArrangeRanks.
  std::shared_ptr<fsdp::DeviceMesh> mesh;
  at::Device device = at::kCPU;

  int64_t rank() const { return group->rank(); }
  int64_t size() const { return group->size(); }
};

/// Forms the process group that the environment describes. Collective. Errors: DisagreementError
/// for different backends or devices; c10::Error.
World JoinRanks(const TrainConfig::Parallel& parallel);

/// Arranges the ranks in a mesh: `copies` of a model along its first axis, if there are several,
/// and shards along its last. Collective, with the same `copies` on all ranks. Errors: ConfigError
/// if the ranks cannot be divided so.
void ArrangeRanks(int64_t copies, World& world);

/// Sets torch's threads to OMP_NUM_THREADS; without it to 1 in a world of several ranks.
void SetThreads(int64_t world_size);

}  // namespace fsdprun::worker
