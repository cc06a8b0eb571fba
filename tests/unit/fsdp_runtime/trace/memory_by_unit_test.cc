#include <fsdp/counters.h>
#include <fsdp/memory.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/engine/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kFloat = 4;

TEST(MemoryByUnitTest, FollowsAStep) {
  const ToyConfig config{.blocks = 1};
  run_ranks(2, [&](Rank& rank) {
    Unit<ToyModel> model = make_sharded(config, {.mesh = rank.mesh});
    const FSDPModule root = fsdp_module(*model);
    root.init_parameters(initialise);
    const int64_t block = kFloat * (2 * config.hidden * config.width + config.hidden + 15);
    std::vector<UnitMemory> before = memory_by_unit(root);
    ASSERT_EQ(before.size(), 2u);
    EXPECT_EQ(before[0].unit, "");
    EXPECT_EQ(before[0].whole, kFloat * (config.vocab + 1) * config.width)
        << "tied tensors count once";
    EXPECT_EQ(before[1].unit, "block0");
    EXPECT_EQ(before[1].whole, block);
    EXPECT_GE(2 * before[1].shard, block);
    EXPECT_EQ(before[1].total(), before[1].shard)
        << "nothing is gathered, and there is no gradient";

    const FSDPModule unit = fsdp_module(*model->blocks[0]);
    unit.unshard();
    EXPECT_GE(memory_by_unit(root)[1].gathered, block);
    unit.reshard();
    EXPECT_EQ(memory_by_unit(root)[1].gathered, 0);

    const at::Tensor tokens = tokens_of(config, 0, rank.rank);
    root.set_requires_gradient_sync(false);
    loss_of(model(tokens), tokens).backward();
    EXPECT_GE(memory_by_unit(root)[1].unreduced, block);
    EXPECT_EQ(memory_by_unit(root)[1].gradient, 0);
    root.set_requires_gradient_sync(true);
    loss_of(model(tokens), tokens).backward();
    root.sharded_gradients();
    const UnitMemory after = memory_by_unit(root)[1];
    EXPECT_EQ(after.unreduced, 0);
    EXPECT_EQ(after.gradient, after.shard);
  });
}

TEST(MemoryByUnitTest, TableHasEachUnitAndTheSum) {
  const std::string table =
      memory_table({{.unit = "", .whole = 4 << 20, .shard = 2 << 20},
                    {.unit = "layers.0", .whole = 8 << 20, .shard = 4 << 20, .gradient = 1 << 20}});
  EXPECT_THAT(
      table,
      HasSubstr("      4.00       2.00       0.00       0.00       0.00       2.00  (root)\n"));
  EXPECT_THAT(
      table,
      HasSubstr("      8.00       4.00       0.00       0.00       1.00       5.00  layers.0\n"));
  EXPECT_THAT(
      table,
      HasSubstr("     12.00       6.00       0.00       0.00       1.00       7.00  (all)\n"));
}

/// Gathers of one step, and the most that the units took.
std::pair<int64_t, int64_t> gathers_of_a_step(Rank& rank, std::optional<int64_t> budget) {
  const ToyConfig config{.blocks = 3};
  Unit<ToyModel> model = make_sharded(config, {.mesh = rank.mesh});
  const FSDPModule root = fsdp_module(*model);
  root.init_parameters(initialise);
  if (budget) {
    reshard_within(root, *budget);
  }
  const at::Tensor tokens = tokens_of(config, 0, rank.rank);
  const int64_t before = runtime_counters(root).gathers;
  const at::Tensor loss = loss_of(model(tokens), tokens);
  int64_t gathered = 0;
  for (const UnitMemory& unit : memory_by_unit(root)) {
    gathered += unit.gathered;
  }
  loss.backward();
  return {runtime_counters(root).gathers - before, gathered};
}

TEST(ReshardWithinTest, FewerGathersForMoreMemory) {
  run_ranks(2, [&](Rank& rank) {
    const int64_t all = gathers_of_a_step(rank, int64_t{1} << 40).second;
    const auto [gathers_of_all, unused] = gathers_of_a_step(rank, all);
    EXPECT_EQ(gathers_of_all, 4) << "each unit once";
    const auto [gathers, gathered] = gathers_of_a_step(rank, all - 1);
    EXPECT_EQ(gathers, 5);
    EXPECT_LT(gathered, all);
  });
}

TEST(ReshardWithinTest, SaysHowMuchIsNeeded) {
  run_ranks(2, [&](Rank& rank) {
    Unit<ToyModel> model = make_sharded({.blocks = 2}, {.mesh = rank.mesh});
    const FSDPModule root = fsdp_module(*model);
    EXPECT_THAT(refusal([&] { reshard_within(root, 10); }),
                ::testing::AllOf(HasSubstr("a unit, the next one"), HasSubstr("10 were given")));
  });
}

/// Calls `look` when it runs.
struct LookingBlock : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    look();
    return at::mm(x, weight).sin();
  }
  at::Tensor weight = register_parameter("weight", at::ones({16, 16}));
  std::function<void()> look;
};

/// Most of its parameters are the root's own.
struct LargeRoot : torch::nn::Module {
  LargeRoot() {
    for (int i = 0; i < 4; ++i) {
      blocks.emplace_back(std::make_shared<LookingBlock>());
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    x = x * table.mean();
    for (const Unit<LookingBlock>& block : blocks) {
      x = block(x);
      if (x.requires_grad()) {
        x.register_hook([&block](const at::Tensor&) { block->look(); });
      }
    }
    return x.sum();
  }
  at::Tensor table = register_parameter("table", at::ones({100, 16, 16}));
  std::vector<Unit<LookingBlock>> blocks;
};

TEST(ReshardWithinTest, TheBudgetHasRoomForTheUnitsAround) {
  run_ranks(2, [](Rank& rank) {
    const Unit<LargeRoot> model(std::make_shared<LargeRoot>());
    // Or the gathered parameters would take no memory.
    const auto mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"},
                                       std::make_shared<GroupWithoutWindows>(rank.comm));
    for (const Unit<LookingBlock>& block : model->blocks) {
      fully_shard(block.ptr(), {.mesh = mesh});
    }
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = mesh});
    constexpr int64_t kBlock = kFloat * 16 * 16;
    EXPECT_THAT(refusal([&] { reshard_within(root, 102 * kBlock - 1); }),
                HasSubstr("take " + std::to_string(102 * kBlock) + " bytes"));
    for (const int64_t blocks : {2, 3}) {
      const int64_t budget = (100 + blocks) * kBlock;
      reshard_within(root, budget);
      int64_t most = 0;
      for (const Unit<LookingBlock>& block : model->blocks) {
        block->look = [&] {
          int64_t gathered = 0;
          for (const UnitMemory& unit : memory_by_unit(root)) {
            gathered += unit.gathered;
          }
          most = std::max(most, gathered);
        };
      }
      for (int step = 0; step < 2; ++step) {  // the second one prefetches
        model(at::ones({2, 16})).backward();
      }
      EXPECT_LE(most, budget);
      EXPECT_GT(most, 100 * kBlock) << "the root is gathered around the blocks";
    }
  });
}

TEST(ReshardWithinTest, TheBudgetHasRoomForWhatIsCopiedOut) {
  run_ranks(2, [](Rank& rank) {
    const Unit<LargeRoot> model(std::make_shared<LargeRoot>());
    const auto mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"},
                                       std::make_shared<GroupWithoutWindows>(rank.comm));
    const FullyShardOptions options{.mesh = mesh, .shard_placement_fn = shard_on_dim(0)};
    for (const Unit<LookingBlock>& block : model->blocks) {
      block->register_parameter("bias", at::zeros({16}));
      block->look = [] {};
      fully_shard(block.ptr(), options);
    }
    const FSDPModule root = fully_shard(model.ptr(), options);
    // Of the root's one nothing is copied. Of a block: shards of 8 rows and 8 elements, padded to
    // 192, and 256 and 16 elements, padded to 288, that are copied out of both.
    constexpr int64_t kGathered = kFloat * 2 * 192;
    constexpr int64_t kNeeded = kFloat * (100 * 16 * 16 + 288) + kGathered + kGathered;
    EXPECT_THAT(refusal([&] { reshard_within(root, kNeeded - 1); }),
                HasSubstr("take " + std::to_string(kNeeded) + " bytes"));
    const at::NoGradGuard no_grad;
    for (int step = 0; step < 2; ++step) {  // the second one prefetches
      model(at::ones({2, 16}));
    }
    EXPECT_EQ(runtime_counters(root).slot_bytes, kNeeded);
  });
}

TEST(MemoryByUnitTest, EmptyHandleIsRefused) {
  EXPECT_THAT(refusal([] { memory_by_unit({}); }), HasSubstr("the handle is empty"));
}

}  // namespace
}  // namespace fsdp::testing
