#include <fsdp/full_params.h>
#include <fsdp/initialize.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

/// Parameters and buffers of several dtypes and shapes, one of them under two names, one empty and
/// one that is not contiguous.
struct MixedStates : torch::nn::Module {
  explicit MixedStates(double value) {
    at::NoGradGuard no_grad;
    register_module("linear", linear);
    register_module("norm", norm);
    scale = register_parameter("scale", at::full({3, 5}, value, at::kDouble).t());
    tied = register_parameter("tied", linear->weight);
    flags = register_buffer("flags", at::full({7}, value > 1.5));
    none = register_buffer("none", at::empty({0}));
    linear->weight.fill_(value);
    linear->bias.fill_(value);
    norm->running_mean.fill_(value);
    norm->num_batches_tracked.fill_(value);
  }
  torch::nn::Linear linear{11, 3};
  torch::nn::BatchNorm1d norm{4};
  at::Tensor scale, tied, flags, none;
};

void expect_states_of_first(const MixedStates& states) {
  EXPECT_TRUE(at::equal(states.linear->weight, at::ones({3, 11})));
  EXPECT_TRUE(at::equal(states.linear->bias, at::ones({3})));
  EXPECT_TRUE(at::equal(states.scale, at::ones({5, 3}, at::kDouble)));
  EXPECT_TRUE(at::equal(states.flags, at::zeros({7}, at::kBool)));
  EXPECT_TRUE(at::equal(states.norm->running_mean, at::ones({4})));
  EXPECT_EQ(states.norm->num_batches_tracked.item<int64_t>(), 1);
}

TEST(SyncModuleStatesTest, AllRanksHaveWhatTheFirstHas) {
  run_ranks(3, [](Rank& rank) {
    const auto states = std::make_shared<MixedStates>(1.0 + static_cast<double>(rank.rank));
    sync_module_states(states, rank.mesh);
    expect_states_of_first(*states);
    EXPECT_EQ(count(rank, "broadcast"), 2);  // what is not contiguous goes alone
    EXPECT_TRUE(states->linear->weight.requires_grad());
  });
}

TEST(SyncModuleStatesTest, WhatIsLargerThanABucketGoesInPieces) {
  run_ranks(2, [](Rank& rank) {
    const auto states = std::make_shared<MixedStates>(1.0 + static_cast<double>(rank.rank));
    sync_module_states(states, rank.mesh, /*bucket_bytes=*/50);
    expect_states_of_first(*states);
    for (const CollectiveRecord& record : rank.comm->records()) {
      EXPECT_TRUE(record.operation != "broadcast" || record.numel <= 50) << record.numel;
    }
  });
}

TEST(SyncModuleStatesTest, OnAMeshOfTwoAxesTheFirstRankOfAllIsTheSource) {
  run_ranks(4, [](Rank& rank) {
    const auto states = std::make_shared<MixedStates>(1.0 + static_cast<double>(rank.rank));
    sync_module_states(states, mesh_of(rank.comm, 2));
    expect_states_of_first(*states);
  });
}

TEST(SyncModuleStatesTest, RanksThatDifferAreRefusedOnAllRanks) {
  run_ranks(2, [](Rank& rank) {
    const auto linear = std::make_shared<torch::nn::LinearImpl>(3, 4 + rank.rank);
    const std::string said = refusal([&] { sync_module_states(linear, rank.mesh); });
    EXPECT_NE(said.find("ranks 0 and 1 differ"), std::string::npos) << said;
    const auto same = std::make_shared<torch::nn::LinearImpl>(3, 4);
    const std::string buckets =
        refusal([&] { sync_module_states(same, rank.mesh, /*bucket_bytes=*/16 + rank.rank); });
    EXPECT_NE(buckets.find("ranks 0 and 1 differ"), std::string::npos) << buckets;
    EXPECT_EQ(count(rank, "broadcast"), 0);
  });
}

TEST(SyncModuleStatesTest, AParameterWithoutMemoryIsRefusedByName) {
  struct Empty : torch::nn::Module {
    at::Tensor weight =
        register_parameter("weight", unmaterialized_parameter({3}, at::kFloat, c10::kCPU));
  };
  run_ranks(2, [](Rank& rank) {
    const std::string said =
        refusal([&] { sync_module_states(std::make_shared<Empty>(), rank.mesh); });
    EXPECT_NE(said.find("weight has no memory"), std::string::npos) << said;
    refusal([&] { sync_module_states(std::shared_ptr<torch::nn::Module>(), rank.mesh); });
    refusal([&] { sync_module_states(std::make_shared<Empty>(), rank.mesh, 0); });
  });
}

TEST(SyncModuleStatesTest, ShardedCopiesGetThoseOfTheFirstRowAndBuffersThoseOfTheFirstRank) {
  run_ranks(4, [](Rank& rank) {
    const auto states = std::make_shared<MixedStates>(1.0 + static_cast<double>(rank.rank / 2));
    const auto mesh = mesh_of(rank.comm, 2);
    {
      const at::NoGradGuard no_grad;
      states->scale.set_data(states->scale.contiguous());
      states->norm->running_mean.fill_(5.0 + static_cast<double>(rank.rank));
    }
    const FSDPModule root = fully_shard(states, {.mesh = mesh});
    EXPECT_EQ(root.full_parameter("tied").min().item<float>(), 1 + rank.rank / 2);
    sync_module_states(states, mesh, /*bucket_bytes=*/64);
    EXPECT_TRUE(at::equal(root.full_parameter("tied"), at::ones({3, 11})));
    EXPECT_TRUE(at::equal(root.full_parameter("scale"), at::ones({5, 3}, at::kDouble)));
    EXPECT_TRUE(at::equal(states->norm->running_mean, at::full({4}, 5.0)));
  });
}

}  // namespace
}  // namespace fsdp::testing
