#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/models/model_config.h"
#include "worker/config/config.h"
#include "worker/estimate/held_memory.h"

namespace fsdprun::worker {

/// Bytes that a rank sends in an optimizer step, which are as many as it receives, by rings: (n -
/// 1) / n of what n ranks gather or reduce. What ranks of a host read in place of each other is not
/// sent.
struct Traffic {
  /// Weights, before the forward and the backward of each micro batch.
  double gathered = 0;
  /// Gradients, to the ranks that have the shards.
  double reduced = 0;
  /// Between copies of the model.
  double copied = 0;
  /// Matrices of Muon, there and back.
  double optimizer = 0;

  double total() const { return gathered + reduced + copied + optimizer; }
};

/// How many forwards a step has, and of how many the gradients are reduced.
struct StepForwards {
  int64_t forwards = 1;
  int64_t reductions = 1;
};

/// `groups` of `weights`. A unit is gathered in each forward, and again in each backward if
/// parallel.strategy is full_shard and it is a block. Pure.
Traffic TrafficOf(const std::vector<EstimatedWeight>& weights,
                  const std::vector<WeightGroup>& groups, const TrainConfig& config,
                  const Arrangement& arrangement, const StepForwards& step);

/// What a step does with activation checkpointing, as a factor of ModelFlopsPerToken(): besides,
/// the forward of the blocks, which is a third of what they do if all is trained. Pure.
double RecomputationFactor(const ModelConfig& model, int64_t seq_len, bool has_frozen_matrices);

/// What is assumed of the machine, and known of the step, for its time.
struct SpeedAssumptions {
  /// Of one device, in a second; what part of it a run without recomputation makes use of.
  double peak_flops = 0;
  double mfu = 0;
  /// Bytes in a second that a rank sends, and receives at the same time.
  double bandwidth = 0;
};

struct StepTime {
  double compute_seconds = 0;
  double communication_seconds = 0;
  /// If the one goes on beside the other all the time, and if it never does.
  double seconds() const;
  double seconds_without_overlap() const { return compute_seconds + communication_seconds; }
};

/// `flops`: of a step, of all ranks, with what is computed again. nullopt if the peak is not known.
/// Pure.
std::optional<StepTime> StepTimeOf(double flops, int64_t ranks, const Traffic& traffic,
                                   const SpeedAssumptions& assumptions);

}  // namespace fsdprun::worker
