// Gathering by hand, and when backward gathers.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/chain_model.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(UnshardTest, AsyncNeedsNoForwardBefore) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const UnshardHandle handle = setup.root.unshard_async();
    EXPECT_EQ(count(rank, "all_gather"), 1);
    handle.wait();
    at::Tensor expected = at::empty({29, 15});
    initialise("embedding", expected);
    EXPECT_TRUE(at::equal(setup.model->embedding, expected));
    handle.wait();
    EXPECT_EQ(count(rank, "all_gather"), 1);
  });
}

TEST(UnshardTest, ForwardWaitsForAnAsyncGatherThatNobodyHasWaitedFor) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (const FSDPModule& unit : setup.root.units()) {
      unit.unshard_async();
    }
    EXPECT_EQ(count(rank, "all_gather"), 4);
    const at::Tensor result = loss(setup.model, 0, rank.rank);
    EXPECT_EQ(count(rank, "all_gather"), 4) << "forward gathered again";
    EXPECT_EQ(result.item<float>(), loss(plain.model, 0, rank.rank).item<float>());
  });
}

TEST(UnshardTest, AHandleOfAUnitThatHasBeenReshardedGathersNothing) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const UnshardHandle handle = setup.root.unshard_async();
    setup.root.reshard();
    handle.wait();
    EXPECT_EQ(count(rank, "all_gather"), 1);
    EXPECT_THROW(setup.model->embedding.sum(), c10::Error);
  });
}

TEST(UnshardTest, AUnitWithoutParametersOfItsOwn) {
  struct Around : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return link(x); }
    Unit<Link> link{std::make_shared<Link>(1.0)};
  };
  run_ranks(2, [](Rank& rank) {
    Unit<Around> model(std::make_shared<Around>());
    model->register_module("link", model->link.ptr());
    fully_shard(model->link.ptr(), {.mesh = rank.mesh});
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    root.unshard_async().wait();
    root.reshard();
    EXPECT_EQ(count(rank, "all_gather"), 0);
    model(at::ones({2, 6})).sum().backward();
    EXPECT_EQ(count(rank, "reduce_scatter"), 1);
  });
}

TEST(UnshardTest, ParametersAreThereWhenReshardAfterForwardSaysSo) {
  struct Expected {
    std::optional<ReshardAfterForward> asked;
    bool has_root;
    bool has_block;
  };
  for (const Expected& expected : std::vector<Expected>{{std::nullopt, true, false},
                                                        {true, false, false},
                                                        {false, true, true},
                                                        {2, false, false}}) {
    run_ranks(4, [&](Rank& rank) {
      Sharded setup = make(rank, {}, {.reshard_after_forward = expected.asked});
      const ToyModel& model = *setup.model;
      EXPECT_TRUE(is_sharded(model.gain) && is_sharded(model.blocks[1]->up));
      const at::Tensor result = loss(setup.model, 0, rank.rank);
      EXPECT_EQ(is_sharded(model.gain), !expected.has_root);
      EXPECT_EQ(is_sharded(model.blocks[1]->up), !expected.has_block);
      const FSDPModule block = fsdp_module(*model.blocks[1]);
      block.unshard();
      EXPECT_FALSE(is_sharded(model.blocks[1]->up));
      block.reshard();
      EXPECT_TRUE(is_sharded(model.blocks[1]->up));
      result.backward();
      EXPECT_TRUE(is_sharded(model.gain) && is_sharded(model.blocks[1]->up));
    });
  }
}

TEST(UnshardTest, WhatIsReshardedByHandIsGatheredInBackward) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, {}, {.reshard_after_forward = false});
    PlainTraining plain({}, 2, {});
    const at::Tensor result = loss(setup.model, 0, rank.rank);
    for (const FSDPModule& unit : setup.root.units()) {
      unit.reshard();
    }
    EXPECT_EQ(count(rank, "all_gather"), 4);
    result.backward();
    EXPECT_EQ(count(rank, "all_gather"), 4 + 4);
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

struct Table : torch::nn::Module {
  at::Tensor forward(const at::Tensor& tokens) { return at::embedding(weight, tokens); }
  at::Tensor weight = register_parameter("weight", at::arange(42, at::kFloat).view({7, 6}) * 0.01);
};

struct Reader : torch::nn::Module {
  Reader() {
    register_module("table", table.ptr());
    register_module("link", link.ptr());
  }
  at::Tensor forward(const at::Tensor& tokens) { return link(table(tokens)); }
  Unit<Table> table{std::make_shared<Table>()};
  Unit<Link> link{std::make_shared<Link>(0.5)};
};

TEST(UnshardTest, BackwardDoesNotGatherWhatItDoesNotNeed) {
  run_ranks(2, [](Rank& rank) {
    const auto gradient = [&rank](bool gathers, int64_t expected_gathers) {
      Unit<Reader> model(std::make_shared<Reader>());
      const FSDPModule table = fully_shard(model->table.ptr(), {.mesh = rank.mesh});
      fully_shard(model->link.ptr(), {.mesh = rank.mesh});
      const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
      table.set_unshard_in_backward(gathers);
      for (int step = 0; step < 2; ++step) {
        rank.comm->clear();
        model(at::arange(rank.rank, 5, at::kLong)).square().sum().backward();
        EXPECT_EQ(count(rank, "all_gather"), expected_gathers) << "step " << step;
        EXPECT_EQ(count(rank, "reduce_scatter"), 2);
      }
      return root.sharded_gradients()[0].local.clone();
    };
    EXPECT_TRUE(at::equal(gradient(false, 3), gradient(true, 4)));
  });
}

TEST(UnshardTest, ARecomputationGathersWhatBackwardDoesNot) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, {.checkpointing = ToyConfig::Checkpointing::kAroundUnit});
    PlainTraining plain({}, 2, {});
    for (const FSDPModule& unit : setup.root.units()) {
      unit.set_unshard_in_backward(false);
    }
    const Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    expect_gradients(rank, setup.root, expected);
  });
}

}  // namespace
}  // namespace fsdp::testing
