// A user's hooks on gradients, within the backward.

#include <fsdp/optim.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/grouped_model.h"

namespace fsdp::testing {
namespace {

using torch::optim::AdamWOptions;

/// As PyTorch's tutorial has it: an optimizer for each parameter.
std::map<std::string, std::shared_ptr<torch::optim::AdamW>> optimizer_of_each(
    const FSDPModule& root) {
  std::map<std::string, std::shared_ptr<torch::optim::AdamW>> optimizers;
  for (const auto& [fqn, parameter] : root.named_parameters()) {
    optimizers[fqn] = std::make_shared<torch::optim::AdamW>(std::vector<at::Tensor>{parameter},
                                                            AdamWOptions(1e-2));
  }
  return optimizers;
}

void expect_hooks_that_step(Rank& rank, const std::function<Sharded()>& make_model) {
  Sharded in_backward = make_model();
  Sharded behind = make_model();
  const auto optimizers = optimizer_of_each(in_backward.root);
  in_backward.root.register_post_accumulate_grad_hook(
      [&optimizers](const std::string& fqn, const at::Tensor& parameter) {
        EXPECT_TRUE(parameter.grad().defined()) << fqn;
        optimizers.at(fqn)->step();
        optimizers.at(fqn)->zero_grad();
      });
  torch::optim::AdamW optimizer(behind.root.parameters(), AdamWOptions(1e-2));
  for (int64_t step = 0; step < 3; ++step) {
    backward_in(in_backward, step, rank.rank);
    backward_in(behind, step, rank.rank);
    optimizer.step();
    optimizer.zero_grad();
    const auto ones = in_backward.root.named_parameters();
    const auto others = behind.root.named_parameters();
    for (size_t i = 0; i < ones.size(); ++i) {
      EXPECT_TRUE(at::equal(ones[i].second, others[i].second)) << ones[i].first;
      EXPECT_FALSE(ones[i].second.grad().defined()) << ones[i].first;
    }
  }
}

TEST(GradientHookTest, OptimizersOfTorchStepInIt) {
  run_ranks(2, [](Rank& rank) {
    expect_hooks_that_step(rank, [&] { return make(rank); });
    expect_hooks_that_step(rank, [&] { return make(rank, wide_toy()); });
    FullyShardOptions half;
    half.mp_policy.param_dtype = at::kBFloat16;
    expect_hooks_that_step(rank, [&] { return make(rank, wide_toy(), half); });
  });
  run_ranks(4,
            [](Rank& rank) { expect_hooks_that_step(rank, [&] { return make_hybrid(rank, 2); }); });
}

TEST(GradientHookTest, GradientsThatItKeepsStayAndAreAddedTo) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    std::vector<std::string> called;
    RemovableHandle handle = setup.root.register_post_accumulate_grad_hook(
        [&called](const std::string& fqn, const at::Tensor&) { called.push_back(fqn); });
    Gradients expected;
    for (int64_t step = 0; step < 2; ++step) {
      loss(setup.model, step, rank.rank).backward();
      add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, step, r); });
    }
    expect_gradients(rank, setup.root, expected, 1e-6);
    EXPECT_EQ(called.size(), 2 * expected.size());
    EXPECT_EQ(called.front(), "block2.up");  // in the order of the backward
    EXPECT_EQ(std::count(called.begin(), called.end(), "block0.spare"), 0);  // nobody has used it
    handle.remove();
    called.clear();
    loss(setup.model, 2, rank.rank).backward();
    EXPECT_TRUE(called.empty());
  });
}

TEST(GradientHookTest, OfOneUnitAlone) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<std::string> called;
    fsdp_module(*setup.model->blocks[1])
        .register_post_accumulate_grad_hook(
            [&called](const std::string& fqn, at::Tensor parameter) {
              called.push_back(fqn);
              parameter.mutable_grad().reset();
            });
    setup.root.register_post_accumulate_grad_hook(
        [&called](const std::string& fqn, const at::Tensor&) { called.push_back("root " + fqn); },
        /*recurse=*/false);
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(called,
              (std::vector<std::string>{"up", "bias", "down", "root embedding", "root gain"}));
    for (const LocalShard& gradient : setup.root.sharded_gradients()) {
      const bool has_one = !gradient.fqn.starts_with("block1") && !gradient.fqn.ends_with("spare");
      EXPECT_EQ(gradient.local.defined(), has_one) << gradient.fqn;
    }
  });
}

TEST(GradientHookTest, WhatItThrowsEndsTheBackwardOnceAllIsReduced) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    setup.root.register_post_accumulate_grad_hook(
        [&rank](const std::string& fqn, const at::Tensor&) {
          if (rank.rank == 0 && fqn == "block2.up") {
            throw std::runtime_error("no step for " + fqn);
          }
        });
    const at::Tensor value = loss(setup.model, 0, rank.rank);
    if (rank.rank == 0) {
      EXPECT_THROW(value.backward(), std::runtime_error);
    } else {
      value.backward();
    }
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

TEST(GradientHookTest, TheNextUserSeesAReplacedGradient) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.root.register_post_accumulate_grad_hook([](const std::string&, at::Tensor parameter) {
      parameter.mutable_grad() = at::zeros_like(parameter.grad());
    });
    const auto optimizer =
        std::make_shared<AdamW>(setup.root, fsdp::AdamWOptions{.weight_decay = 0});
    apply_optimizer_in_backward(optimizer);
    std::vector<at::Tensor> before;
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      before.push_back(shard.local.clone());
    }
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(optimizer->step_count(), 1);
    const std::vector<LocalShard> after = setup.root.sharded_parameters();
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_TRUE(at::equal(after[i].local, before[i])) << after[i].fqn;
    }
  });
}

TEST(GradientHookTest, IsRefusedWhenItIsEmpty) {
  run_ranks(1, [](Rank& rank) {
    const Sharded setup = make(rank);
    EXPECT_NE(
        refusal([&] { setup.root.register_post_accumulate_grad_hook(nullptr); }).find("empty"),
        std::string::npos);
  });
}

}  // namespace
}  // namespace fsdp::testing
