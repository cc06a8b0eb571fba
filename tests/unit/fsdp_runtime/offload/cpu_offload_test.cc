// What handles, state dicts and initialisation do with CPUOffloadPolicy, on a group that says that
// streams order its operations, so that shards are copied as between a device and its host.

#include <fsdp/full_params.h>
#include <fsdp/initialize.h>
#include <fsdp/memory.h>
#include <fsdp/optim.h>
#include <fsdp/state_dict.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

constexpr bool kAsOnADevice = true;

Sharded make_offloaded(const Rank& rank, const ToyConfig& config = {}) {
  return make(rank, config, {.offload_policy = CPUOffloadPolicy{.pin_memory = false}});
}

void expect_same(const std::vector<LocalShard>& parts, const std::vector<LocalShard>& expected) {
  ASSERT_EQ(parts.size(), expected.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(at::equal(parts[i].local, expected[i].local)) << parts[i].fqn;
  }
}

// One rank alone would compute on its shard.
TEST(CpuOffloadMemoryTest, WhatIsGatheredIsACopy) {
  run_ranks(
      1,
      [](Rank& rank) {
        const Sharded setup = make_offloaded(rank);
        setup.root.unshard();
        const UnitMemory root = memory_by_unit(setup.root).front();
        EXPECT_GE(root.gathered, root.whole);
      },
      kAsOnADevice);
}

TEST(CpuOffloadMemoryTest, OnTheCpuThereIsNothingToCopy) {
  run_ranks(1, [](Rank& rank) {
    const Sharded setup = make(rank, {}, {.offload_policy = CPUOffloadPolicy{}});
    setup.root.unshard();
    EXPECT_EQ(memory_by_unit(setup.root).front().gathered, 0);
  });
}

TEST(CpuOffloadStateTest, FullStateDictIsOnRank0AndLoadsAgain) {
  run_ranks(
      2,
      [](Rank& rank) {
        Sharded setup = make_offloaded(rank);
        AdamW optimizer(setup.root, {});
        loss(setup.model, 0, rank.rank).backward();
        optimizer.step();
        const auto [model, state] =
            get_state_dict(setup.root, optimizer, {.full_state_dict = true, .cpu_offload = true});
        EXPECT_EQ(model.is_empty(), rank.rank != 0);
        Sharded other = make_offloaded(rank);
        AdamW other_optimizer(other.root, {});
        set_state_dict(other.root, other_optimizer, model, state,
                       {.full_state_dict = true, .broadcast_from_rank0 = true});
        expect_same(setup.root.sharded_parameters(), other.root.sharded_parameters());
        expect_same(optimizer.exp_avg(), other_optimizer.exp_avg());
        expect_same(optimizer.exp_avg_sq(), other_optimizer.exp_avg_sq());
        EXPECT_EQ(other_optimizer.parameter_steps(), optimizer.parameter_steps());
      },
      kAsOnADevice);
}

TEST(CpuOffloadStateTest, SummonedParametersAreWrittenBack) {
  run_ranks(
      2,
      [](Rank& rank) {
        const Sharded setup = make_offloaded(rank);
        const at::Tensor before = setup.root.full_parameter("gain");
        summon_full_params(setup.root, [&] {
          const at::NoGradGuard no_grad;
          setup.model->gain.mul_(3);
        });
        EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), before * 3));
      },
      kAsOnADevice);
}

TEST(CpuOffloadStateTest, CopiesBecomeThoseOfTheFirstRow) {
  run_ranks(
      2,
      [](Rank& rank) {
        FullyShardOptions options;
        options.offload_policy = CPUOffloadPolicy{.pin_memory = false};
        const Sharded setup = make_hybrid_on<AsOnADevice>(rank, 2, options);
        for (const LocalShard& shard : setup.root.sharded_parameters()) {
          shard.local.fill_(static_cast<double>(rank.rank + 1));
        }
        sync_module_states(setup.model.ptr(), rank.mesh);
        for (const LocalShard& shard : setup.root.sharded_parameters()) {
          EXPECT_TRUE(shard.local.eq(1).all().item<bool>()) << shard.fqn;
        }
      },
      kAsOnADevice);
}

// One rank: the generator is the process's.
TEST(CpuOffloadStateTest, DeferredModelGetsItsValues) {
  run_ranks(
      1,
      [](Rank& rank) {
        const auto make_model = [] {
          torch::manual_seed(5);
          return torch::nn::Linear(16, 12);
        };
        const torch::nn::Linear expected = make_model();
        const torch::nn::Linear model = deferred_init(make_model);
        const FSDPModule root = fully_shard(
            model, {.mesh = rank.mesh, .offload_policy = CPUOffloadPolicy{.pin_memory = false}});
        materialize_module(model.ptr());
        EXPECT_TRUE(at::equal(root.full_parameter("weight"), expected->weight.detach()));
        EXPECT_TRUE(at::equal(root.full_parameter("bias"), expected->bias.detach()));
      },
      kAsOnADevice);
}

TEST(CpuOffloadErrorTest, NamesAParameterThatIsNotOnTheCpu) {
  run_ranks(1, [](Rank& rank) {
    struct OnMeta : torch::nn::Module {
      at::Tensor weight =
          register_parameter("weight", at::empty({4, 4}, at::TensorOptions(at::kMeta)));
    };
    const std::string error = refusal([&] {
      fully_shard(std::make_shared<OnMeta>(),
                  {.mesh = rank.mesh, .offload_policy = CPUOffloadPolicy{}});
    });
    EXPECT_NE(
        error.find("parameter weight is on meta, but with an offload_policy parameters should "
                   "be on the CPU"),
        std::string::npos)
        << error;
  });
}

}  // namespace
}  // namespace fsdp::testing
