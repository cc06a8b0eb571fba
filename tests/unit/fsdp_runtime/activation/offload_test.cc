#include <ATen/ATen.h>
#include <fsdp/activation_checkpoint.h>
#include <fsdp/offload_activations.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {
namespace {

at::Tensor some_leaf() { return at::arange(12, at::kFloat).view({3, 4}).set_requires_grad(true); }

// There is nowhere else to put them. Those of a device: see streams/offload_activations_test.cc.
TEST(OffloadTest, TensorsOnTheCpuStayWhereTheyAre) {
  const at::Tensor x = some_leaf();
  at::Tensor y, hidden;
  {
    const OffloadActivations offload({.min_bytes = 0});
    hidden = x.sin();
    y = hidden.exp().sum();
  }
  y.backward();
  EXPECT_TRUE(at::allclose(x.grad(), x.cos() * x.sin().exp()));
}

TEST(OffloadTest, WhatStaysMustNotBeModified) {
  const at::Tensor x = some_leaf();
  at::Tensor y, hidden;
  {
    const OffloadActivations offload({.min_bytes = 0});
    hidden = x.sin();
    y = hidden.cos().sum();
  }
  hidden.detach().zero_();
  EXPECT_THAT(refusal([&] { y.backward(); }),
              ::testing::AllOf(::testing::HasSubstr("of shape [3, 4]"),
                               ::testing::HasSubstr("modified in place")));
}

// Of which parameters come and go between forward and backward.
TEST(OffloadTest, UnitsWithinHaveTheirGradients) {
  run_ranks(2, [](Rank& rank) {
    const ToyConfig config{.blocks = 2};
    const at::Tensor tokens = tokens_of(config, 0, rank.rank);
    const auto gradients = [&](bool offloads) {
      Unit<ToyModel> model = make_sharded(config, {.mesh = rank.mesh});
      const FSDPModule root = fsdp_module(*model);
      root.init_parameters(initialise);
      at::Tensor loss;
      if (offloads) {
        const OffloadActivations offload({.min_bytes = 0});
        loss = loss_of(model(tokens), tokens);
      } else {
        loss = loss_of(model(tokens), tokens);
      }
      loss.backward();
      return root.sharded_gradients();
    };
    const auto expected = gradients(false);
    const auto found = gradients(true);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i].local.defined(), expected[i].local.defined()) << found[i].fqn;
      EXPECT_TRUE(!found[i].local.defined() || at::equal(found[i].local, expected[i].local))
          << found[i].fqn;
    }
  });
}

TEST(OffloadTest, EndsWithItsScope) {
  const at::Tensor x = some_leaf();
  { const OffloadActivations offload; }
  x.exp().sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x.exp().detach()));
}

TEST(OffloadTest, SegmentsWithinKeepTheirOwnHooks) {
  const at::Tensor x = some_leaf();
  int runs = 0;
  at::Tensor loss;
  {
    const OffloadActivations offload({.min_bytes = 0});
    loss = activation_checkpoint(
               CheckpointOptions{.early_stop = false},
               [&runs](const at::Tensor& t) {
                 ++runs;
                 return t.sin().exp();
               },
               x * 1)
               .sum();
  }
  loss.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::allclose(x.grad(), x.cos() * x.sin().exp()));
}

}  // namespace
}  // namespace fsdp::testing
