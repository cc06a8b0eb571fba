#include "worker/estimate/step_work.h"

#include <algorithm>

#include "formats/models/block_names.h"
#include "formats/models/model_flops.h"
#include "worker/estimate/optimizer_memory.h"

namespace fsdprun::worker {
namespace {

/// Muon exchanges bfloat16.
constexpr double kMuonBytes = 2;

/// Of `bytes` that `ranks` ranks gather or reduce, what each sends.
double RingBytes(double bytes, int64_t ranks) {
  return bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

bool HasMatricesOfMuon(const WeightGroup& group, const std::vector<EstimatedWeight>& weights,
                       const TrainConfig::Optimizer& optimizer) {
  return std::any_of(group.weights.begin(), group.weights.end(),
                     [&](size_t index) { return IsOfMuon(weights[index], optimizer); });
}

}  // namespace

Traffic TrafficOf(const std::vector<EstimatedWeight>& weights,
                  const std::vector<WeightGroup>& groups, const TrainConfig& config,
                  const Arrangement& arrangement, const StepForwards& step) {
  Traffic traffic;
  const auto forwards = static_cast<double>(step.forwards);
  const auto reductions = static_cast<double>(step.reductions);
  for (const WeightGroup& group : groups) {
    const auto numel = static_cast<double>(group.memory.numel);
    const double gathers = forwards * (group.memory.stays_gathered ? 1 : 2);
    if (!group.memory.is_windowed) {
      traffic.gathered +=
          gathers * RingBytes(numel * static_cast<double>(group.memory.compute_bytes),
                              arrangement.shard_ranks);
    }
    if (group.memory.is_trainable) {
      const double bytes = numel * static_cast<double>(group.memory.reduce_bytes);
      traffic.reduced += reductions * RingBytes(bytes, arrangement.shard_ranks);
      // An all-reduce is two rings.
      traffic.copied +=
          reductions * 2 *
          RingBytes(bytes / static_cast<double>(arrangement.shard_ranks), arrangement.copies);
    }
    if (HasMatricesOfMuon(group, weights, config.optimizer)) {
      traffic.optimizer += 2 * RingBytes(numel * kMuonBytes, arrangement.shard_ranks);
    }
  }
  return traffic;
}

double RecomputationFactor(const ModelConfig& model, int64_t seq_len, bool has_frozen_matrices) {
  ModelConfig without_blocks = model;
  std::erase_if(without_blocks.weights,
                [](const WeightShape& weight) { return BlockOf(weight.name).has_value(); });
  const double all = ModelFlopsPerToken(model, seq_len);
  // Without tokens there is no attention, which is of the blocks.
  const double head = ModelFlopsPerToken(without_blocks, 0);
  return 1 + (all - head) / 3 / ModelFlopsPerToken(model, seq_len, has_frozen_matrices);
}

double StepTime::seconds() const { return std::max(compute_seconds, communication_seconds); }

std::optional<StepTime> StepTimeOf(double flops, int64_t ranks, const Traffic& traffic,
                                   const SpeedAssumptions& assumptions) {
  if (!(assumptions.peak_flops > 0)) {
    return std::nullopt;
  }
  return StepTime{flops / (assumptions.peak_flops * assumptions.mfu * static_cast<double>(ranks)),
                  traffic.total() / assumptions.bandwidth};
}

}  // namespace fsdprun::worker
