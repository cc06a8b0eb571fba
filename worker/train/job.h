#pragma once

#include <fsdp/collectives.h>
#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/unit.h>

#include <cstdint>
#include <memory>
#include <string>

#include "worker/models/llama.h"
#include "worker/train/config.h"

namespace fsdprun::worker {

/// The sharded model and the ranks that hold it.
struct Job {
  std::shared_ptr<fsdp::Collectives> group;
  at::Device device = at::kCPU;
  fsdp::Unit<Llama> model;
  fsdp::FSDPModule root;

  int64_t rank() const { return group->rank(); }
  int64_t world_size() const { return group->size(); }
};

/// Forms the process group that the environment describes; the job has no model yet. Collective.
/// Errors: DisagreementError for different backends or devices; c10::Error.
Job JoinRanks(const TrainConfig& config);

/// Shards an unmaterialized model over the ranks. The shards are not initialised; FillWeights or a
/// checkpoint does that. Collective.
void ShardModel(const TrainConfig& config, const LlamaConfig& llama, Job& job);

/// Both of these.
Job MakeJob(const TrainConfig& config, const LlamaConfig& llama);

/// Random weights from model.seed or those of model.weights. No collective.
void FillWeights(const TrainConfig& config, Job& job);

/// Whether every weight on every rank is a finite number. Collective.
bool HasFiniteWeights(const Job& job);

/// Peak memory of this process: allocated on the device, or resident for CPU.
int64_t PeakMemoryBytes(at::Device device);

/// Of the device's allocator: in use now, and the most so far; 0 for CPU.
struct DeviceMemory {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;
};
DeviceMemory MemoryOf(at::Device device);

/// Sets torch's threads to OMP_NUM_THREADS; without it to 1 in a world of several ranks.
void SetThreads(int64_t world_size);

}  // namespace fsdprun::worker
