// Parameters that do not train: in a unit, all of a unit, and in some steps only.

#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/line_chain.h"

namespace fsdp::testing {
namespace {

/// Elements that have been reduced since the records were cleared.
int64_t reduced_numel(const Rank& rank) {
  int64_t numel = 0;
  for (const CollectiveRecord& record : rank.comm->records()) {
    numel += record.operation == "reduce_scatter" ? record.numel : 0;
  }
  return numel;
}

/// What is frozen before fully_shard(): it makes the groups.
ShardedChain shard_frozen(const Rank& rank, const std::function<void(const Unit<Chain>&)>& freeze) {
  ShardedChain setup;
  freeze(setup.model);
  for (const Unit<ChainLine>& line : setup.model->lines) {
    fully_shard(line.ptr(), {.mesh = rank.mesh});
  }
  setup.root = fully_shard(setup.model.ptr(), {.mesh = rank.mesh});
  return setup;
}

void expect_frozen_alike(const std::function<void(const Unit<Chain>&)>& freeze,
                         int64_t reductions) {
  for (const bool checkpoints : {false, true}) {
    const auto pass = [checkpoints](const Unit<Chain>& model, int64_t rank) {
      model->checkpoints = checkpoints;
      chain_loss(model, rank).backward();
      chain_loss(model, rank, 1).backward();
    };
    run_ranks(2, [&](Rank& rank) {
      const ShardedChain setup = shard_frozen(rank, freeze);
      pass(setup.model, rank.rank);
      EXPECT_EQ(count(rank, "reduce_scatter"), 2 * reductions);
      expect_gradients(rank, setup.root,
                       chain_gradients(2,
                                       [&](const Unit<Chain>& model, int64_t r) {
                                         freeze(model);
                                         pass(model, r);
                                       }),
                       1e-6);
    });
  }
}

TEST(FrozenParametersTest, OfAUnitAreNotReducedWithTheOthers) {
  run_ranks(2, [](Rank& rank) {
    const auto numel_of = [&](bool freezes) {
      ToyConfig config;
      config.frozen_first_weight = freezes;
      const Sharded setup = make(rank, config);
      rank.comm->clear();
      loss(setup.model, 0, rank.rank).backward();
      return reduced_numel(rank);
    };
    const ToyConfig config;
    EXPECT_NEAR(static_cast<double>(numel_of(false) - numel_of(true)),
                static_cast<double>(config.blocks * config.hidden * config.width), 3 * 128)
        << "but for padding";
  });
  expect_frozen_alike(
      [](const Unit<Chain>& model) { model->lines[1]->weight.requires_grad_(false); }, 3);
}

TEST(FrozenParametersTest, OfWholeUnitsLetGradientsPass) {
  for (const size_t frozen : {0, 1, 2}) {
    expect_frozen_alike([frozen](const Unit<Chain>& model) { model->lines[frozen]->freeze(true); },
                        2);
  }
  expect_frozen_alike(
      [](const Unit<Chain>& model) {
        model->lines[0]->freeze(true);
        model->lines[2]->freeze(true);
      },
      1);
}

// Each step freezes another line, which was or was not frozen when the model was sharded.
TEST(FrozenParametersTest, MayBeOthersInEachStep) {
  for (const bool first_is_frozen : {false, true}) {
    for (const bool as_on_a_device : {false, true}) {
      run_ranks(
          2,
          [first_is_frozen](Rank& rank) {
            const ShardedChain setup = shard_frozen(
                rank, [&](const Unit<Chain>& model) { model->lines[0]->freeze(first_is_frozen); });
            for (int64_t step = 0; step < 6; ++step) {
              const auto pass = [step](const Unit<Chain>& model, int64_t r) {
                for (size_t i = 0; i < 3; ++i) {
                  model->lines[i]->freeze(static_cast<int64_t>(i) == step % 4);
                }
                chain_loss(model, r, step).backward();
              };
              pass(setup.model, rank.rank);
              expect_gradients(rank, setup.root, chain_gradients(2, pass), 1e-6);
              AdamW(setup.root, {}).zero_grad();
            }
          },
          as_on_a_device);
    }
  }
}

// One of a group's parameters: it stays what it is, and the others train.
TEST(FrozenParametersTest, OfAGroupThatTrainsHaveNoGradientWhileTheyAreFrozen) {
  run_ranks(2, [](Rank& rank) {
    const ShardedChain setup = shard_chain(rank);
    AdamW optimizer(setup.root, {.lr = 0.1});
    const auto weight = [&] { return setup.root.full_parameter("line1.weight"); };
    const at::Tensor initial = weight();
    const at::Tensor bias = setup.root.full_parameter("line1.bias");
    for (int64_t step = 0; step < 4; ++step) {
      setup.model->lines[1]->weight.requires_grad_(step >= 2);
      chain_loss(setup.model, rank.rank, step).backward();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(at::equal(weight(), initial), step < 2) << "step " << step;
    }
    EXPECT_FALSE(at::equal(setup.root.full_parameter("line1.bias"), bias));
    const std::vector<int64_t> steps = optimizer.parameter_steps();
    EXPECT_EQ(*std::min_element(steps.begin(), steps.end()), 2);
    EXPECT_EQ(*std::max_element(steps.begin(), steps.end()), 4);
  });
}

TEST(FrozenParametersTest, AreAlsoRunTwiceBeforeABackward) {
  expect_as_without_sharding([](const Unit<Chain>& model, int64_t rank) {
    model->lines[1]->freeze(true);
    model->order = {0, 1, 0, 2};
    const at::Tensor one = chain_loss(model, rank, 0);
    (one + chain_loss(model, rank, 1)).backward();
  });
}

}  // namespace
}  // namespace fsdp::testing
