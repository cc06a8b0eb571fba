// Where fsdp::linear computes a weight's gradient, and who may keep it.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <functional>
#include <memory>

#include "tests/unit/fsdp_runtime/engine/one_linear.h"

namespace fsdp::testing {
namespace {

/// A backward in which a hook of the node sees the weight's gradient.
void backward(const OneLayer& one, double phase,
              const std::function<void(const at::Tensor& gradient)>& hook) {
  struct Hook : torch::autograd::FunctionPostHook {
    explicit Hook(const std::function<void(const at::Tensor&)>& call) : call(call) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      call(outputs.at(1));
      return outputs;
    }
    const std::function<void(const at::Tensor&)> call;
  };
  const at::Tensor output = one.layer(batch({6, 24}, phase));
  output.grad_fn()->add_post_hook(std::make_unique<Hook>(hook));
  output.square().sum().backward();
}

TEST(LinearGradientTest, AHookOfANodeMayKeepTheGradient) {
  run_ranks(2, [](Rank& rank) {
    const OneLayer one(rank, linear);
    std::vector<at::Tensor> kept;
    const auto keep = [&kept](const at::Tensor& gradient) { kept.push_back(gradient); };
    backward(one, 1, keep);
    const at::Tensor first = kept.at(0).clone();
    EXPECT_GT(first.abs().max().item<float>(), 0);
    backward(one, 2, keep);
    EXPECT_TRUE(at::equal(kept.at(0), first));
    EXPECT_FALSE(at::equal(kept.at(1), first));
  });
}

// One rank, which computes gradients where the shard's is; the bias keeps its own.
TEST(LinearGradientTest, WhatIsOnItsWayWhenAGradientIsDroppedArrives) {
  run_ranks(1, [](Rank& rank) {
    const auto nothing = [](const at::Tensor&) {};
    OneLayer one(rank, linear, 24, 40, /*has_bias=*/true);
    AdamW of_weight(one.root, {{.params = {"weight"}}}, {});
    backward(one, 0, nothing);
    one.root.set_requires_gradient_sync(false);
    backward(one, 1, nothing);
    of_weight.zero_grad();
    one.root.set_requires_gradient_sync(true);
    backward(one, 2, [&of_weight](const at::Tensor&) { of_weight.zero_grad(); });
    const OneLayer fresh(rank, linear, 24, 40, /*has_bias=*/true);
    backward(fresh, 2, nothing);
    EXPECT_TRUE(at::equal(one.gradients().at(0), fresh.gradients().at(0)));
    EXPECT_FALSE(at::equal(one.gradients().at(1), fresh.gradients().at(1)));
  });
}

TEST(LinearGradientTest, ComputesTheFirstGradientWhereItIsReduced) {
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      OneLayer one(rank, linear);
      OneLayer copied(rank, aten_linear);
      for (int step = 0; step < 2; ++step) {
        const auto backward = [&](OneLayer& any) {
          any.layer(batch({6, 24}, step)).square().sum().backward();
        };
        backward(one);
        backward(copied);
        EXPECT_TRUE(at::equal(one.gradients()[0], copied.gradients()[0]));
      }
      // The second step's is added to the first's: by the reduction, but in memory if one rank has
      // none.
      EXPECT_EQ(one.moved(), rank.size == 1 ? 1 : 0);
      EXPECT_EQ(copied.moved(), 2);
    });
  }
}

TEST(LinearGradientTest, AddsWhatLaterMicroBatchesGive) {
  run_ranks(2, [](Rank& rank) {
    std::vector<at::Tensor> sums;
    for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
      OneLayer one(rank, call);
      for (const bool is_last : {false, false, true}) {
        one.root.set_requires_gradient_sync(is_last);
        one.layer(batch({6, 24}, is_last ? 2 : 1)).square().sum().backward();
      }
      sums.push_back(one.gradients()[0]);
      EXPECT_EQ(one.moved(), call == LinearCall{linear} ? 2 : 3);
    }
    EXPECT_TRUE(at::equal(sums[0], sums[1]));
  });
}

TEST(LinearGradientTest, AHookMayKeepTheGradient) {
  run_ranks(2, [](Rank& rank) {
    OneLayer one(rank, linear);
    std::vector<at::Tensor> kept;
    one.layer->weight.register_hook([&](const at::Tensor& gradient) { kept.push_back(gradient); });
    one.layer(batch({6, 24}, 1)).square().sum().backward();
    const at::Tensor first = kept.at(0).clone();
    one.layer(batch({6, 24}, 2)).square().sum().backward();
    EXPECT_TRUE(at::equal(kept.at(0), first));
    EXPECT_FALSE(at::equal(kept.at(1), first));
  });
}

TEST(LinearGradientTest, WhoAsksForTheGradientItselfMayKeepIt) {
  run_ranks(2, [](Rank& rank) {
    OneLayer one(rank, linear);
    const auto gradient = [&](double phase) {
      return torch::autograd::grad({one.layer(batch({6, 24}, phase)).square().sum()},
                                   {one.layer->weight})
          .front();
    };
    const at::Tensor first = gradient(1);
    const at::Tensor copy = first.clone();
    one.layer(batch({6, 24}, 2)).square().sum().backward();
    EXPECT_TRUE(at::equal(first, copy));
  });
}

TEST(LinearGradientTest, GradientsInAnotherDtypeThanTheReductionsAreCopied) {
  run_ranks(2, [](Rank& rank) {
    for (const std::optional<at::ScalarType> reduce :
         {std::optional(at::kFloat), std::optional<at::ScalarType>()}) {
      std::vector<at::Tensor> results;
      for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
        Unit<LinearLayer> layer(std::make_shared<LinearLayer>(24, 40, true, call));
        FullyShardOptions options;
        options.mesh = rank.mesh;
        options.mp_policy.param_dtype = at::kBFloat16;
        options.mp_policy.reduce_dtype = reduce;
        const FSDPModule root = fully_shard(layer.ptr(), options);
        layer(batch({6, 24})).square().sum().backward();
        results.push_back(root.sharded_gradients()[0].local.clone());
        EXPECT_EQ(runtime_counters(root).moved_gradients,
                  call == LinearCall{linear} && !reduce ? 1 : 2);
      }
      EXPECT_TRUE(at::equal(results[0], results[1]));
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
