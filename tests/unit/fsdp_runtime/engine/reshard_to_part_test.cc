// reshard_after_forward as an integer.

#include <c10/util/Exception.h>
#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/engine/planned_memory.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

/// Gathers of a step over all ranks; those over parts of them are not recorded here.
int64_t gathers_of_all(Rank& rank, Sharded& setup) {
  rank.comm->clear();
  loss(setup.model, 0, rank.rank).backward();
  return count(rank, "all_gather");
}

TEST(ReshardToPartTest, BackwardGathersOverNeighboursOnly) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank, {}, {.reshard_after_forward = 2});
    for (int step = 0; step < 2; ++step) {
      const int64_t before = runtime_counters(setup.root).gathers;
      EXPECT_EQ(gathers_of_all(rank, setup), 4);
      EXPECT_EQ(runtime_counters(setup.root).gathers - before, 4 + 4);
      EXPECT_EQ(count(rank, "reduce_scatter"), 4);
    }
  });
}

/// The weights after some steps, and every loss.
std::map<std::string, at::Tensor> train(Rank& rank, const ToyConfig& config,
                                        const FullyShardOptions& options) {
  Sharded setup = make(rank, config, options);
  AdamW optimizer(setup.root, {.lr = 0.05});
  std::map<std::string, at::Tensor> trained;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor result = loss(setup.model, step, rank.rank);
    trained["loss " + std::to_string(step)] = result.detach();
    result.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    trained[shard.fqn] = setup.root.full_parameter(shard.fqn);
  }
  return trained;
}

void expect_equal(const std::map<std::string, at::Tensor>& found,
                  const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(found.at(name), tensor)) << name;
  }
}

TEST(ReshardToPartTest, TrainsWithTheSameBits) {
  run_ranks(4, [](Rank& rank) {
    const MixedPrecisionPolicy bfloat16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    for (const MixedPrecisionPolicy& policy : {MixedPrecisionPolicy{}, bfloat16}) {
      const auto with = [&](ReshardAfterForward reshards) {
        return FullyShardOptions{.reshard_after_forward = reshards, .mp_policy = policy};
      };
      expect_equal(train(rank, {}, with(2)), train(rank, {}, with(true)));
    }
    const ToyConfig recomputed{.checkpointing = ToyConfig::Checkpointing::kAroundUnit};
    expect_equal(train(rank, recomputed, {.reshard_after_forward = 2}), train(rank, {}, {}));
  });
}

TEST(ReshardToPartTest, AllRanksAreTrueAndOneIsFalse) {
  run_ranks(2, [](Rank& rank) {
    Sharded all = make(rank, {}, {.reshard_after_forward = 2});
    EXPECT_EQ(gathers_of_all(rank, all), 4 + 4);
    Sharded none = make(rank, {}, {.reshard_after_forward = 1});
    EXPECT_EQ(gathers_of_all(rank, none), 4);
  });
}

TEST(ReshardToPartTest, CanBeChangedBetweenSteps) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto parts = [&] {
      const int64_t before = runtime_counters(setup.root).gathers;
      const int64_t all = gathers_of_all(rank, setup);
      return std::vector<int64_t>{all, runtime_counters(setup.root).gathers - before - all};
    };
    EXPECT_EQ(parts(), (std::vector<int64_t>{4 + 3, 0}));
    setup.root.set_reshard_after_forward(2);
    EXPECT_EQ(parts(), (std::vector<int64_t>{4, 4}));
    setup.root.set_reshard_after_forward(true);
    EXPECT_EQ(parts(), (std::vector<int64_t>{4 + 4, 0}));
    setup.root.set_reshard_after_forward(false, /*recurse=*/false);
    EXPECT_EQ(parts(), (std::vector<int64_t>{4 + 3, 0}));
    setup.root.set_reshard_after_forward(false);
    EXPECT_EQ(parts(), (std::vector<int64_t>{4, 0}));
  });
}

TEST(ReshardToPartTest, ANumberThatDoesNotDivideTheRanksIsRefused) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank);
    for (const int ranks : {3, 0, -2, 8}) {
      const std::string expected =
          "reshard_after_forward: " + std::to_string(ranks) + " does not divide the 4 ranks";
      EXPECT_NE(refusal([&] { setup.root.set_reshard_after_forward(ranks); }).find(expected),
                std::string::npos);
      const auto block = std::make_shared<ToyBlock>(ToyConfig{});
      EXPECT_NE(refusal([&] {
                  fully_shard(block, {.mesh = rank.mesh, .reshard_after_forward = ranks});
                }).find(expected),
                std::string::npos);
      EXPECT_FALSE(fsdp_module(*block));
    }
    EXPECT_EQ(gathers_of_all(rank, setup), 4 + 3);
  });
}

// What is kept is of the weights that forward has used.
TEST(ReshardToPartTest, AForwardWithoutBackwardLeavesNothingThatIsOutOfDate) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank, {}, {.reshard_after_forward = 2});
    PlainTraining plain({}, 4, {});
    loss(setup.model, 0, rank.rank);
    setup.root.init_parameters([](const std::string&, at::Tensor full) { full.fill_(0.25); });
    for (const auto& [name, parameter] : plain.unique_parameters()) {
      parameter.detach().fill_(0.25);
    }
    EXPECT_EQ(loss(setup.model, 0, rank.rank).item<float>(),
              loss(plain.model, 0, rank.rank).item<float>());
    {
      const at::NoGradGuard no_grad;
      rank.comm->clear();
      loss(setup.model, 0, rank.rank);
      loss(setup.model, 0, rank.rank);
      EXPECT_EQ(count(rank, "all_gather"), 4) << "the first one has kept parts of the graph's";
    }
  });
}

TEST(ReshardToPartTest, TakesTheMemoryThatIsPlanned) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank, {}, {.reshard_after_forward = 2});
    for (int step = 0; step < 3; ++step) {
      loss(setup.model, step, rank.rank).backward();
      AdamW(setup.root, {}).zero_grad();
    }
    const plan::MemoryPlan plan = planned_memory(setup.root);
    EXPECT_EQ(runtime_counters(setup.root).slot_bytes,
              plan.parameter_slot_bytes + plan.gradient_slot_bytes);
    setup.root.set_reshard_after_forward(true);
    EXPECT_LT(planned_memory(setup.root).parameter_slot_bytes, plan.parameter_slot_bytes);
  });
}

// A gather there copies nothing, and takes no memory.
TEST(ReshardToPartTest, WhereRanksReadInPlaceItIsTrue) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), {.reshard_after_forward = 2});
    EXPECT_EQ(gathers_of_all(rank, setup), 3 + 3);
  });
}

/// Counts how often it is divided.
struct Divided : RecordingCollectives {
  using RecordingCollectives::RecordingCollectives;
  std::shared_ptr<Collectives> split(int64_t color) override {
    ++splits;
    return RecordingCollectives::split(color);
  }
  int splits = 0;
};

// To divide is collective, so it must not depend on what a rank still has.
TEST(ReshardToPartTest, ItsGroupIsMadeOnceWhateverModulesARankKeeps) {
  run_ranks(4, [](Rank& rank) {
    const auto comm = std::make_shared<Divided>(rank.comm);
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, comm);
    std::optional<Sharded> kept = make(rank, {}, {.reshard_after_forward = 2});
    EXPECT_EQ(comm->splits, 1);
    if (rank.rank != 0) {
      kept.reset();
    }
    Sharded setup = make(rank, {}, {.reshard_after_forward = 2});
    EXPECT_EQ(comm->splits, 1);
    loss(setup.model, 0, rank.rank).backward();
  });
}

TEST(ReshardToPartTest, AGroupThatIsGoneTakesItsPartsAlong) {
  std::vector<std::weak_ptr<Collectives>> parts(4);
  run_ranks(4, [&parts](Rank& rank) {
    struct Watched : RecordingCollectives {
      using RecordingCollectives::RecordingCollectives;
      std::shared_ptr<Collectives> split(int64_t color) override {
        std::shared_ptr<Collectives> part = RecordingCollectives::split(color);
        made = part;
        return part;
      }
      std::weak_ptr<Collectives> made;
    };
    const auto comm = std::make_shared<Watched>(rank.comm);
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, comm);
    make(rank, {}, {.reshard_after_forward = 2});
    EXPECT_FALSE(comm->made.expired());
    parts[static_cast<size_t>(rank.rank)] = comm->made;
  });
  for (const std::weak_ptr<Collectives>& part : parts) {
    EXPECT_TRUE(part.expired());
  }
}

// Between forward and backward a part of it is somebody's slot.
TEST(ReshardToPartTest, AUnitWithAPartCannotBeShardedAroundAnyMore) {
  struct Around : torch::nn::Module {
    explicit Around(const std::shared_ptr<ToyBlock>& block) { register_module("block", block); }
  };
  run_ranks(4, [](Rank& rank) {
    const FullyShardOptions options{.mesh = rank.mesh, .reshard_after_forward = 2};
    const auto block = std::make_shared<ToyBlock>(ToyConfig{});
    const Unit<ToyBlock> unit(block);
    const FSDPModule root = fully_shard(block, options);
    const at::Tensor result = unit(at::ones({2, 3, ToyConfig{}.width}));
    const std::string said =
        refusal([&] { fully_shard(std::make_shared<Around>(block), options); });
    EXPECT_NE(said.find("is in use; shard the root before"), std::string::npos) << said;
    result.sum().backward();
  });
}

TEST(ReshardToPartTest, RowsOfCopiesHaveTheirOwnParts) {
  run_ranks(8, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2, {.reshard_after_forward = 2});
    PlainTraining plain({}, 8, {});
    const Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    expect_in_every_row(rank, setup.root, expected, 1e-6);
  });
}

}  // namespace
}  // namespace fsdp::testing
