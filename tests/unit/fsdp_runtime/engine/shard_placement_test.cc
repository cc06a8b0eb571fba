// Parameters that are divided along a dimension of their own: what a rank has of them, and that
// they train as those of a flat range do.

#include <fsdp/counters.h>
#include <fsdp/full_params.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "fsdp_runtime/src/engine/planned_memory.h"
#include "tests/unit/fsdp_runtime/engine/placed_model.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const Rank& rank, at::IntArrayRef sizes, ShardPlacementFn placement) {
  const auto block = std::make_shared<ToyBlock>(ToyConfig{});
  block->register_parameter("odd", at::zeros(sizes));
  const std::string said = refusal(
      [&] { fully_shard(block, {.mesh = rank.mesh, .shard_placement_fn = std::move(placement)}); });
  EXPECT_FALSE(fsdp_module(*block));
  return said;
}

ShardPlacementFn only_odd(int64_t dim) {
  return [dim](const std::string& fqn, const at::Tensor&) -> std::optional<ShardPlacement> {
    return fqn == "odd" ? std::make_optional(ShardPlacement{dim}) : std::nullopt;
  };
}

TEST(ShardPlacementTest, ADimensionThatIsNotThereIsRefused) {
  run_ranks(2, [](Rank& rank) {
    for (const int64_t dim : {2, -3}) {
      EXPECT_THAT(refusal_of(rank, {4, 6}, only_odd(dim)),
                  HasSubstr("shard_placement_fn gives dimension " + std::to_string(dim) +
                            " for parameter odd of shape [4, 6]; one from -2 to 1 expected"));
    }
  });
}

TEST(ShardPlacementTest, AnInnerDimensionMustDivideEvenly) {
  run_ranks(3, [](Rank& rank) {
    const std::string expected =
        "parameter odd of shape [6, 4] does not divide evenly along dimension 1 over 3 ranks";
    EXPECT_THAT(refusal_of(rank, {6, 4}, only_odd(1)), HasSubstr(expected));
    EXPECT_THAT(refusal_of(rank, {6, 4}, only_odd(-1)), HasSubstr(expected));
  });
}

TEST(ShardPlacementTest, ChunksAreThoseOfTorch) {
  for (int64_t size = 0; size < 40; ++size) {
    const at::Tensor whole = at::empty({size, 2});
    for (int64_t ranks = 1; ranks < 10; ++ranks) {
      const plan::DimChunks chunks = plan::divide_along({size, 2}, 0, ranks);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const plan::Range held = plan::indices_of_rank(chunks, rank);
        EXPECT_EQ(held.end - held.begin, chunk_of(whole, 0, ranks, rank).size(0))
            << size << " over " << ranks;
      }
    }
  }
}

class PlacedTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PlacedTest, ::testing::Values(1, 2, 3, 4));

TEST_P(PlacedTest, LeavesAreTheChunksOfTorch) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank, placed_toy(), {.shard_placement_fn = inner_of_down()});
    const std::vector<LocalShard> shards = setup.root.sharded_parameters();
    size_t next = 0;
    for (const auto& [fqn, leaf] : setup.root.named_parameters()) {
      const LocalShard& shard = shards.at(next++);
      at::Tensor whole = at::empty(shard.global_shape);
      initialise(fqn, whole);
      const at::Tensor expected =
          chunk_of(whole, fqn.ends_with("down") ? 1 : 0, rank.size, rank.rank);
      EXPECT_EQ(leaf.sizes(), expected.sizes()) << fqn;
      EXPECT_TRUE(at::equal(leaf.detach(), expected)) << fqn;
      EXPECT_TRUE(at::equal(shard.local, expected.flatten())) << fqn;
      EXPECT_TRUE(at::equal(setup.root.full_parameter(fqn), whole)) << fqn;
    }
  });
}

TEST_P(PlacedTest, TrainsWithTheBitsOfTheFlatLayout) {
  const MixedPrecisionPolicy bfloat16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  ToyConfig frozen = placed_toy();
  frozen.frozen_first_weight = true;
  ToyConfig recomputed = placed_toy();
  recomputed.checkpointing = ToyConfig::Checkpointing::kInsideUnit;
  const std::vector<std::pair<ToyConfig, FullyShardOptions>> cases = {
      {placed_toy(), {}},
      {placed_toy(), {.mp_policy = bfloat16}},
      {frozen, {.reshard_after_forward = false}},
      {recomputed, {}},
  };
  run_ranks(GetParam(), [&](Rank& rank) {
    for (const auto& [config, options] : cases) {
      const Trained expected = train(make(rank, config, options), rank.rank);
      for (const ShardPlacementFn& placement : {shard_on_dim(0), inner_of_down()}) {
        expect_same_bits(train(make(rank, config, placed(options, placement)), rank.rank),
                         expected);
      }
    }
  });
}

TEST(ShardPlacementTest, GradientsThatAreMovedInBatchesHaveTheSameBits) {
  run_ranks(
      3,
      [](Rank& rank) {
        const Trained expected = train(make(rank, placed_toy()), rank.rank);
        expect_same_bits(
            train(make(rank, placed_toy(), {.shard_placement_fn = inner_of_down()}), rank.rank),
            expected);
      },
      /*as_on_a_device=*/true);
}

TEST(ShardPlacementTest, RowsOfCopiesAndPartsOfTheParametersHaveThem) {
  run_ranks(4, [](Rank& rank) {
    const FullyShardOptions parts{.reshard_after_forward = 2};
    expect_same_bits(train(make(rank, placed_toy(), placed(parts, inner_of_down())), rank.rank),
                     train(make(rank, placed_toy(), parts), rank.rank));
    const Sharded wide = make(rank, wide_placed_toy(), placed(parts, inner_of_down()));
    ASSERT_TRUE(wide.root.state()->groups().front()->store().window());
    expect_same_bits(train(wide, rank.rank), train(make(rank, wide_placed_toy()), rank.rank));
    rank.mesh = mesh_of(rank.comm, 2);
    expect_same_bits(train(make(rank, placed_toy(), placed({}, inner_of_down())), rank.rank),
                     train(make(rank, placed_toy()), rank.rank));
  });
}

/// Gathers to memory of its own.
struct OwnGather : AllGather {
  WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
    return group.all_gather_into(output, input, std::move(issue));
  }
};
struct OwnReduction : ReduceScatter {
  WorkPtr run(at::Tensor output, at::Tensor input, ReduceOp op, Collectives& group,
              Issue issue) override {
    return group.reduce_scatter_into(output, input, op, std::move(issue));
  }
};

TEST(ShardPlacementTest, CustomCollectivesHaveThem) {
  run_ranks(2, [](Rank& rank) {
    for (const ToyConfig& config : {placed_toy(), wide_placed_toy()}) {
      Sharded custom = make(rank, config, {.shard_placement_fn = inner_of_down()});
      const bool is_wide = config.hidden == wide_placed_toy().hidden;
      ASSERT_EQ(custom.root.state()->groups().front()->store().window() != nullptr, is_wide);
      for (const FSDPModule& unit : custom.root.units()) {
        unit.set_custom_all_gather(std::make_shared<OwnGather>());
        unit.set_custom_reduce_scatter(std::make_shared<OwnReduction>());
      }
      expect_same_bits(train(custom, rank.rank), train(make(rank, config), rank.rank));
    }
  });
}

TEST(ShardPlacementTest, WhatPeersReadInPlaceIsTheShardInItsOwnDtype) {
  run_ranks(2, [](Rank& rank) {
    const FullyShardOptions bfloat16{
        .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
    for (const FullyShardOptions& options : {FullyShardOptions{}, bfloat16}) {
      Sharded setup = make(rank, wide_placed_toy(), placed(options, inner_of_down()));
      const ShardStore& store = setup.root.state()->groups().front()->store();
      const ShardStore& block =
          fsdp_module(*setup.model->blocks[0]).state()->groups().front()->store();
      ASSERT_TRUE(store.layout().copies_out() && store.window() && block.window());
      EXPECT_FALSE(block.copy_for_peers().defined());
      EXPECT_EQ(block.window()->own().const_data_ptr(), block.shard().const_data_ptr());
      expect_same_bits(train(setup, rank.rank),
                       train(make(rank, wide_placed_toy(), options), rank.rank));
    }
  });
}

TEST(ShardPlacementTest, WhoWritesNeedNotWaitForThoseWhoHaveCopied) {
  run_ranks(3, [](Rank& rank) {
    Sharded setup = make(rank, wide_placed_toy(), {.shard_placement_fn = shard_on_dim(0)});
    const ToyBlock& block = *setup.model->blocks[1];
    const FSDPModule unit = fsdp_module(block);
    unit.unshard();
    const at::Tensor before = block.down.detach().clone();
    rank.comm->barrier();
    if (rank.rank != 1) {
      unit.prepare_to_write();  // rank 1 does not come to it
      unit.sharded_parameters().at(2).local.fill_(3);
    }
    rank.comm->barrier();
    if (rank.rank == 1) {
      EXPECT_TRUE(at::equal(block.down.detach(), before));
      unit.prepare_to_write();
      unit.sharded_parameters().at(2).local.fill_(3);
    }
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block1.down"), at::full_like(before, 3)));
  });
}

TEST(ShardPlacementTest, TakesTheMemoryThatIsPlanned) {
  const std::vector<std::pair<ToyConfig, FullyShardOptions>> cases = {
      {placed_toy(), {}},
      {placed_toy(), {.reshard_after_forward = 2}},
      {placed_toy(), {.mp_policy = {.param_dtype = at::kBFloat16}}},
      {wide_placed_toy(), {}},
      {wide_placed_toy(), {.reshard_after_forward = 2}},
  };
  run_ranks(4, [&](Rank& rank) {
    for (const auto& [config, options] : cases) {
      Sharded setup = make(rank, config, placed(options, inner_of_down()));
      for (int step = 0; step < 3; ++step) {
        loss(setup.model, step, rank.rank).backward();
        AdamW(setup.root, {}).zero_grad();
      }
      const plan::MemoryPlan plan = planned_memory(setup.root);
      EXPECT_EQ(runtime_counters(setup.root).slot_bytes,
                plan.parameter_slot_bytes + plan.gradient_slot_bytes);
    }
  });
}

TEST(ShardPlacementTest, OneParameterAlongItsFirstDimensionIsNotCopied) {
  run_ranks(4, [](Rank& rank) {
    const auto make_matrix = [] { return std::make_shared<torch::nn::Module>("Matrix"); };
    const auto uneven = make_matrix();
    uneven->register_parameter("weight", at::arange(15.).view({5, 3}));
    const FSDPModule unit =
        fully_shard(uneven, {.mesh = rank.mesh, .shard_placement_fn = shard_on_dim(0)});
    EXPECT_FALSE(layout_of(*uneven).copies_out());
    EXPECT_EQ(layout_of(*uneven).shard_numel, 2 * 3);
    EXPECT_EQ(unit.parameters().front().size(0), rank.rank < 2 ? 2 : rank.rank == 2 ? 1 : 0);
    unit.unshard();
    EXPECT_TRUE(at::equal(uneven->parameters().front().detach(), at::arange(15.).view({5, 3})));
    EXPECT_EQ(runtime_counters(unit).slot_bytes, 4 * 6 * 4);
    const auto inner = make_matrix();
    inner->register_parameter("weight", at::arange(24.).view({3, 8}));
    const FSDPModule copied =
        fully_shard(inner, {.mesh = rank.mesh, .shard_placement_fn = shard_on_dim(1)});
    EXPECT_TRUE(layout_of(*inner).copies_out());
    copied.unshard();
    EXPECT_TRUE(at::equal(inner->parameters().front().detach(), at::arange(24.).view({3, 8})));
  });
}

TEST(ShardPlacementTest, AGatherThatNobodyHasWaitedForIsGivenUpWithoutACopy) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, placed_toy(), {.shard_placement_fn = shard_on_dim(0)});
    const FSDPModule unit = fsdp_module(*setup.model->blocks[0]);
    const auto bytes = [&] { return runtime_counters(setup.root).slot_bytes; };
    unit.unshard_async();
    unit.reshard();
    const int64_t gathered = bytes();
    EXPECT_EQ(gathered, layout_of(*setup.model->blocks[0]).numel() * 4);
    unit.unshard();
    EXPECT_EQ(bytes() - gathered, layout_of(*setup.model->blocks[0]).whole_numel() * 4);
    EXPECT_TRUE(
        at::equal(setup.model->blocks[0]->up.detach(), setup.root.full_parameter("block0.up")));
    unit.reshard();
  });
}

TEST(ShardPlacementTest, ParametersAndGradientsCanBeSummoned) {
  run_ranks(3, [](Rank& rank) {
    Sharded setup = make(rank, placed_toy(), {.shard_placement_fn = inner_of_down()});
    PlainTraining plain(placed_toy(), 3, {});
    const Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    summon_full_params(setup.root,
                       [&] {
                         for (const auto& parameter : setup.model->named_parameters()) {
                           if (parameter.key() == "head") {
                             continue;  // the embedding
                           }
                           const auto found = expected.find(parameter.key());
                           EXPECT_EQ(parameter.value().grad().defined(), found != expected.end());
                           if (found != expected.end()) {
                             EXPECT_TRUE(at::equal(parameter.value().grad(), found->second))
                                 << parameter.key();
                           }
                           parameter.value().mul_(2);
                         }
                       },
                       {.with_grads = true});
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      at::Tensor whole = at::empty(shard.global_shape);
      initialise(shard.fqn, whole);
      EXPECT_TRUE(at::equal(setup.root.full_parameter(shard.fqn), whole * 2)) << shard.fqn;
    }
    expect_gradients(rank, setup.root, expected);
  });
}

}  // namespace
}  // namespace fsdp::testing
