#pragma once

// The toy model with hybrid sharding: the ranks of a row divide the parameters, the rows hold
// copies.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {

inline std::shared_ptr<DeviceMesh> mesh_of(std::shared_ptr<Collectives> world, int64_t replicas) {
  const int64_t shards = world->size() / replicas;
  return init_device_mesh(c10::kCPU, {replicas, shards}, {"dp_replicate", "dp_shard"},
                          std::move(world));
}

inline Sharded make_hybrid(Rank& rank, int64_t replicas, FullyShardOptions options = {}) {
  rank.mesh = mesh_of(rank.comm, replicas);
  return make(rank, {}, std::move(options));
}

/// A world of `Part`s: it is one, and so are the groups that are split from it.
template <class Part>
struct WorldOf : Part {
  using Part::Part;
  std::shared_ptr<Collectives> split(int64_t color) override {
    return std::make_shared<Part>(Part::split(color));
  }
};

/// The model on groups that are `Part`s.
template <class Part>
Sharded make_hybrid_on(Rank& rank, int64_t replicas, FullyShardOptions options = {}) {
  rank.mesh = mesh_of(std::make_shared<WorldOf<Part>>(rank.comm), replicas);
  return make(rank, {}, std::move(options));
}

/// Axis 0: of the copies; 1: of the row.
template <class Part>
Part& group_on(const Rank& rank, int64_t axis) {
  return dynamic_cast<Part&>(*rank.mesh->group(axis));
}

/// Its ranks copy what they gather, as those of several hosts do.
struct GroupWithoutWindows : RecordingCollectives {
  using RecordingCollectives::RecordingCollectives;
  int64_t window_alignment() const override { return 0; }
  std::shared_ptr<GatherWindow> make_gather_window(int64_t, at::ScalarType, std::string) override {
    return nullptr;
  }
};

/// Each element of every gradient is expected on one rank of each row.
inline void expect_in_every_row(const Rank& rank, const FSDPModule& root, const Gradients& expected,
                                double bound) {
  Rank row = rank;
  row.size = rank.mesh->size(1);
  row.rank = rank.mesh->local_rank(1);
  row.comm = std::make_shared<RecordingCollectives>(rank.mesh->group(1));
  expect_gradients(row, root, expected, bound);
}

/// Adds the gradients of `loss(rank)`, averaged over the ranks.
template <class Loss>
void add_gradients(Gradients& sum, PlainTraining& plain, Loss loss) {
  for (const auto& [fqn, gradient] : plain.gradients(loss)) {
    sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
  }
}

}  // namespace fsdp::testing
