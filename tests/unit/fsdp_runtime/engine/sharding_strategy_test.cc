#include <fsdp/counters.h>
#include <fsdp/sharding_strategy.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

struct Expected {
  ShardingStrategy strategy;
  std::vector<int64_t> shape;
  int64_t gathers;   // of a step
  int64_t shard_of;  // of how many ranks a shard is
};

TEST(ShardingStrategyTest, MeshAndGathersAreThoseOfFsdp1) {
  for (const Expected& expected :
       std::vector<Expected>{{ShardingStrategy::kFullShard, {4}, 4 + 3, 4},
                             {ShardingStrategy::kShardGradOp, {4}, 4, 4},
                             {ShardingStrategy::kNoShard, {4, 1}, 0, 1},
                             {ShardingStrategy::kHybridShard, {2, 2}, 4 + 3, 2},
                             {ShardingStrategy::kHybridShardZero2, {2, 2}, 4, 2}}) {
    run_ranks(4, [&](Rank& rank) {
      const FullyShardOptions options = sharding_options(expected.strategy, rank.comm, 2);
      EXPECT_EQ(options.mesh->shape(), expected.shape);
      rank.mesh = options.mesh;
      Sharded setup = make(rank, {}, options);
      PlainTraining plain({}, 4, {});
      const Gradients gradients =
          plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      loss(setup.model, 0, rank.rank).backward();
      // One rank that does not cast has nothing to gather, and counts nothing.
      EXPECT_EQ(runtime_counters(setup.root).gathers, expected.gathers);
      int64_t held = 0;
      for (const LocalShard& shard : setup.root.sharded_gradients()) {
        if (shard.local.defined()) {
          held += shard.local.numel();
          expect_piece(shard, gradients.at(shard.fqn), 1e-6);
        }
      }
      int64_t whole = 0;
      for (const auto& [name, gradient] : gradients) {
        whole += gradient.numel();
      }
      at::Tensor sum = at::full({1}, held, at::kLong);
      rank.comm->all_reduce(sum, ReduceOp::kSum, Lane::kReduce)->wait();
      EXPECT_EQ(sum.item<int64_t>(), whole * 4 / expected.shard_of);
    });
  }
}

TEST(ShardingStrategyTest, AWorldOfOneNeedsNothingElse) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kHybridShard}) {
    run_ranks(1, [&](Rank& rank) {
      const FullyShardOptions options = sharding_options(strategy, rank.comm, 1);
      rank.mesh = options.mesh;
      Sharded setup = make(rank, {}, options);
      loss(setup.model, 0, 0).backward();
      EXPECT_TRUE(rank.comm->records().empty());
    });
  }
}

TEST(ShardingStrategyTest, AHybridOneNeedsNodesOfEqualSize) {
  run_ranks(4, [](Rank& rank) {
    for (const int64_t ranks_per_node : {0, 3, 8}) {
      const std::string said = refusal(
          [&] { sharding_options(ShardingStrategy::kHybridShard, rank.comm, ranks_per_node); });
      EXPECT_NE(said.find("LOCAL_WORLD_SIZE"), std::string::npos) << said;
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
