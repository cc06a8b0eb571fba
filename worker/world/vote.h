#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/world/world.h"

namespace fsdprun::worker {

/// A question to all ranks that travels while they compute: who asks makes a Vote, computes, and
/// then reads the highest answer. Collective. Destroy it only after Highest().
class Vote {
 public:
  /// `answer`: a small integer >= 0.
  Vote(const World& world, int answer);
  /// The same on all ranks.
  int Highest();

 private:
  at::Tensor answer_;
  fsdp::WorkPtr work_;
};

/// The number that rank 0 gives, on all ranks, which may have come to others. Collective.
int64_t NumberOfRank0(const World& world, int64_t number);

}  // namespace fsdprun::worker
