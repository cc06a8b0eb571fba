#include <fsdp/counters.h>
#include <fsdp/custom_comm.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/engine/in_a_row.h"

namespace fsdp::testing {
namespace {

struct CountedGather : AllGather {
  at::Tensor allocate(int64_t numel, at::ScalarType dtype, c10::Device device) override {
    memory = AllGather::allocate(numel, dtype, device);
    return returns_wrong_memory ? memory.narrow(0, 0, numel - 1) : memory;
  }
  WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
    ++runs;
    EXPECT_TRUE(output.is_same(memory));
    EXPECT_EQ(output.numel(), input.numel() * group.size());
    return returns_null ? nullptr : group.all_gather_into(output, input, std::move(issue));
  }
  int runs = 0;
  bool returns_null = false;
  bool returns_wrong_memory = false;
  at::Tensor memory;
};

struct CountedReduction : ReduceScatter {
  at::Tensor allocate(int64_t numel, at::ScalarType dtype, c10::Device device) override {
    ++allocations;
    return ReduceScatter::allocate(numel, dtype, device);
  }
  WorkPtr run(at::Tensor output, at::Tensor input, ReduceOp op, Collectives& group,
              Issue issue) override {
    ++runs;
    return group.reduce_scatter_into(output, input, op, std::move(issue));
  }
  int runs = 0;
  int allocations = 0;
};

/// Trains with and without custom collectives of all units, with the same bits.
void expect_same_bits(const ToyConfig& config, const FullyShardOptions& options) {
  run_ranks(2, [&](Rank& rank) {
    Sharded plain = make(rank, config, options);
    Sharded custom = make(rank, config, options);
    const auto gather = std::make_shared<CountedGather>();
    const auto reduction = std::make_shared<CountedReduction>();
    const auto units = static_cast<int>(custom.root.units().size());
    for (const FSDPModule& unit : custom.root.units()) {
      unit.set_custom_all_gather(gather);
      unit.set_custom_reduce_scatter(reduction);
    }
    AdamW plain_optimizer(plain.root, {});
    AdamW custom_optimizer(custom.root, {});
    for (int step = 0; step < 2; ++step) {
      for (int batch = 0; batch < 2; ++batch) {  // the second is added
        const at::Tensor expected = loss(plain.model, step + 7 * batch, rank.rank);
        const at::Tensor found = loss(custom.model, step + 7 * batch, rank.rank);
        EXPECT_EQ(found.item<float>(), expected.item<float>());
        expected.backward();
        found.backward();
      }
      plain_optimizer.step();
      plain_optimizer.zero_grad();
      custom_optimizer.step();
      custom_optimizer.zero_grad();
    }
    EXPECT_EQ(gather->runs, 4 * (2 * units - 1));  // the root's stay
    EXPECT_EQ(reduction->runs, 4 * units);
    EXPECT_EQ(reduction->allocations, reduction->runs);
    EXPECT_EQ(runtime_counters(custom.root).gathers, gather->runs);
    for (const LocalShard& shard : plain.root.sharded_parameters()) {
      EXPECT_TRUE(
          at::equal(plain.root.full_parameter(shard.fqn), custom.root.full_parameter(shard.fqn)))
          << shard.fqn;
    }
  });
}

TEST(CustomCommTest, HasTheBitsOfTheGroups) { expect_same_bits({}, {}); }

TEST(CustomCommTest, HasThemInMixedPrecision) {
  expect_same_bits({}, {.mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}});
}

TEST(CustomCommTest, ReplacesWhatRanksOfAHostWouldReadInPlace) { expect_same_bits(wide_toy(), {}); }

TEST(CustomCommTest, IsUsedUntilItIsTakenAway) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto gather = std::make_shared<CountedGather>();
    const auto reduction = std::make_shared<CountedReduction>();
    setup.root.set_custom_all_gather(gather);
    setup.root.set_custom_reduce_scatter(reduction);
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(gather->runs, 1);  // nested units have the group's
    EXPECT_EQ(reduction->runs, 1);
    setup.root.set_custom_all_gather(nullptr);
    setup.root.set_custom_reduce_scatter(nullptr);
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(gather->runs, 1);
    EXPECT_EQ(reduction->runs, 1);
  });
}

TEST(CustomCommTest, TheAllReduceOverCopiesFollowsIt) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    const auto reduction = std::make_shared<CountedReduction>();
    for (const FSDPModule& unit : setup.root.units()) {
      unit.set_custom_reduce_scatter(reduction);
    }
    PlainTraining plain({}, 4, {});
    const Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(reduction->runs, 4);
    expect_in_every_row(rank, setup.root, expected, 1e-7);
  });
}

TEST(CustomCommTest, GathersPartsOverTheirRanks) {
  struct Sizes : AllGather {
    WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
      seen.push_back(group.size());
      return group.all_gather_into(output, input, std::move(issue));
    }
    std::vector<int64_t> seen;
  };
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank, {}, {.reshard_after_forward = 2});
    PlainTraining plain({}, 4, {});
    const auto gather = std::make_shared<Sizes>();
    for (const FSDPModule& unit : setup.root.units()) {
      unit.set_custom_all_gather(gather);
    }
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(gather->seen, (std::vector<int64_t>{4, 4, 4, 4, 2, 2, 2, 2}));
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }), 1e-7);
  });
}

TEST(CustomCommTest, OneRankHasNothingToExchange) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto gather = std::make_shared<CountedGather>();
    setup.root.set_custom_all_gather(gather);
    loss(setup.model, 0, 0).backward();
    EXPECT_EQ(gather->runs, 0);
  });
}

TEST(CustomCommTest, WhatItReturnsIsChecked) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto gather = std::make_shared<CountedGather>();
    setup.root.set_custom_all_gather(gather);
    gather->returns_wrong_memory = true;
    std::string said = refusal([&] { setup.root.unshard(); });
    EXPECT_NE(said.find("AllGather::allocate() has returned"), std::string::npos) << said;
    gather->returns_wrong_memory = false;
    gather->returns_null = true;
    said = refusal([&] { setup.root.unshard(); });
    EXPECT_NE(said.find("AllGather::run() has returned null"), std::string::npos) << said;
    EXPECT_EQ(gather->memory.use_count(), 1) << "kept for a gather that has not begun";
    gather->returns_null = false;
    loss(setup.model, 0, rank.rank).backward();
  });
}

struct FailingReduction : ReduceScatter {
  explicit FailingReduction(bool fails_at_once) : fails_at_once(fails_at_once) {}
  at::Tensor allocate(int64_t numel, at::ScalarType dtype, c10::Device device) override {
    TORCH_CHECK(!fails_at_once, "told to fail");
    return ReduceScatter::allocate(numel, dtype, device);
  }
  WorkPtr run(at::Tensor, at::Tensor, ReduceOp, Collectives&, Issue) override {
    TORCH_CHECK(false, "told to fail");
  }
  bool fails_at_once;
};

// The gradients are lost, so nobody may go on without noticing; but nothing stays gathered.
TEST(CustomCommTest, AReductionThatCannotBeIssuedFailsForGood) {
  for (const bool fails_at_once : {false, true}) {
    run_ranks(2, [fails_at_once](Rank& rank) {
      ShardedInARow setup = shard_in_a_row(rank.comm);
      const FSDPModule second = fsdp_module(*setup.model->second);
      second.set_custom_reduce_scatter(std::make_shared<FailingReduction>(fails_at_once));
      const at::Tensor x = at::ones({2, 6});
      const auto fails = [](const std::function<void()>& run) {
        const std::string said = refusal(run);
        EXPECT_NE(said.find("told to fail"), std::string::npos) << said;
      };
      fails([&] { setup.model(x).sum().backward(); });
      for (int attempt = 0; attempt < 2; ++attempt) {
        fails([&] { setup.model(x); });
        for (const FSDPModule& unit : setup.root.units()) {
          for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
            EXPECT_TRUE(group->is_sharded());
          }
          EXPECT_EQ(unit.state()->training(), ModuleState::Training::kIdle);
        }
      }
      fails([&] { setup.root.sharded_gradients(); });
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
