// fsdp::linear: the bits of at::linear, and gradients that are computed where they are reduced.

#include <ATen/autocast_mode.h>
#include <fsdp/counters.h>
#include <fsdp/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

using LinearCall = at::Tensor (*)(const at::Tensor&, const at::Tensor&, const at::Tensor&);

at::Tensor aten_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

/// One linear layer; `use` calls it.
struct Layer : torch::nn::Module {
  Layer(int64_t in, int64_t out, bool has_bias, LinearCall call) : call(call) {
    weight =
        register_parameter("weight", at::sin(at::arange(out * in, at::kFloat)).view({out, in}));
    if (has_bias) {
      bias = register_parameter("bias", at::cos(at::arange(out, at::kFloat)));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < times; ++i) {
      y = call(y, weight, bias);
    }
    return y;
  }
  LinearCall call;
  int times = 1;
  at::Tensor weight, bias;
};

struct OneLayer {
  OneLayer(const Rank& rank, LinearCall call, int64_t in = 24, int64_t out = 40,
           bool has_bias = false)
      : layer(std::make_shared<Layer>(in, out, has_bias, call)) {
    FullyShardOptions options;
    options.mesh = rank.mesh;
    root = fully_shard(layer.ptr(), options);
  }
  int64_t moved() const { return runtime_counters(root).moved_gradients; }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const LocalShard& shard : root.sharded_gradients()) {
      all.push_back(shard.local.clone());
    }
    return all;
  }
  Unit<Layer> layer;
  FSDPModule root;
};

at::Tensor batch(at::IntArrayRef sizes, double phase = 0.5) {
  return at::sin(at::arange(c10::multiply_integers(sizes), at::kFloat) * 0.7 + phase).view(sizes);
}

/// Output, the input's gradient and the parameters' gradients.
std::vector<at::Tensor> results_of(const Rank& rank, LinearCall call, const at::Tensor& x,
                                   int64_t out, bool has_bias) {
  OneLayer one(rank, call, x.size(-1), out, has_bias);
  const at::Tensor input = x.detach().requires_grad_();
  const at::Tensor output = one.layer(input);
  (output * batch(output.sizes(), 0.1)).sum().backward();
  std::vector<at::Tensor> results = one.gradients();
  results.push_back(output.detach());
  results.push_back(input.grad());
  return results;
}

TEST(LinearTest, HasTheBitsOfAtens) {
  run_ranks(2, [](Rank& rank) {
    for (const bool has_bias : {false, true}) {
      for (const at::Tensor& x :
           {batch({7, 24}), batch({3, 5, 24}), batch({2, 3, 4, 24}), batch({1, 1, 24}),
            batch({5, 1}), batch({24}), batch({24, 6}).t(), batch({0, 24}),
            batch({3, 1, 24}).expand({3, 5, 24}), batch({64, 256}).mul(1e4)}) {
        const auto own = results_of(rank, linear, x, 40, has_bias);
        const auto atens = results_of(rank, aten_linear, x, 40, has_bias);
        ASSERT_EQ(own.size(), atens.size());
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_TRUE(at::equal(own[i], atens[i])) << x.sizes() << ", result " << i;
        }
      }
    }
  });
}

TEST(LinearTest, ComputesTheFirstGradientWhereItIsReduced) {
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

TEST(LinearTest, AddsWhatLaterMicroBatchesGive) {
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

TEST(LinearTest, AWeightThatIsUsedTwiceGetsTheSum) {
  run_ranks(2, [](Rank& rank) {
    std::vector<at::Tensor> sums;
    for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
      OneLayer one(rank, call, 24, 24);
      one.layer->times = 3;
      for (int step = 0; step < 2; ++step) {
        (one.layer(batch({6, 24})) * 1e-3).square().sum().backward();
      }
      sums.push_back(one.gradients()[0]);
    }
    EXPECT_TRUE(at::equal(sums[0], sums[1]));
  });
}

// In the first pass through the unit its gradient waits in autograd, while the unit gives its
// memory back.
TEST(LinearTest, AUnitOfTwoForwardsGetsTheSum) {
  run_ranks(2, [](Rank& rank) {
    std::vector<at::Tensor> sums;
    for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
      OneLayer one(rank, call);
      (one.layer(batch({6, 24}, 1).requires_grad_()).square().sum() +
       one.layer(batch({6, 24}, 2).requires_grad_()).square().sum())
          .backward();
      sums.push_back(one.gradients()[0]);
    }
    EXPECT_TRUE(at::equal(sums[0], sums[1]));
  });
}

TEST(LinearTest, AHookMayKeepTheGradient) {
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

TEST(LinearTest, WhoAsksForTheGradientItselfMayKeepIt) {
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

TEST(LinearTest, GradientsHaveGradients) {
  run_ranks(2, [](Rank& rank) {
    std::vector<at::Tensor> results;
    for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
      OneLayer one(rank, call);
      one.root.set_reshard_after_backward(false);  // the second backward needs the weight
      const at::Tensor x = batch({6, 24}).requires_grad_();
      const at::Tensor first =
          torch::autograd::grad({one.layer(x).pow(3).sum()}, {x}, {},
                                /*retain_graph=*/std::nullopt, /*create_graph=*/true)
              .front();
      first.square().sum().backward();
      results.push_back(one.gradients()[0]);
    }
    EXPECT_TRUE(at::allclose(results[0], results[1], 1e-6, 0));
    EXPECT_GT(results[0].abs().max().item<float>(), 0);
  });
}

TEST(LinearTest, ABackwardThroughAFreedGraphSaysSo) {
  run_ranks(2, [](Rank& rank) {
    OneLayer one(rank, linear);
    at::Tensor result = one.layer(batch({6, 24}, 1)).square().sum();
    result.backward();
    EXPECT_THROW(result.backward(), c10::Error);
  });
}

TEST(LinearTest, GradientsInAnotherDtypeThanTheReductionsAreCopied) {
  run_ranks(2, [](Rank& rank) {
    for (const std::optional<at::ScalarType> reduce :
         {std::optional(at::kFloat), std::optional<at::ScalarType>()}) {
      std::vector<at::Tensor> results;
      for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
        Unit<Layer> layer(std::make_shared<Layer>(24, 40, true, call));
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

TEST(LinearTest, FollowsAutocast) {
  run_ranks(2, [](Rank& rank) {
    std::vector<at::Tensor> results;
    for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
      OneLayer one(rank, call);
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor output = one.layer(batch({6, 24}));
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      output.to(at::kFloat).square().sum().backward();
      results.push_back(one.gradients()[0]);
    }
    EXPECT_TRUE(at::equal(results[0], results[1]));
  });
}

TEST(LinearTest, WithoutShardingItIsAtens) {
  Layer layer(24, 40, true, linear);
  const at::Tensor output = layer.forward(batch({6, 24}));
  EXPECT_NE(output.grad_fn()->name(), "FsdpLinearBackward");
  output.square().sum().backward();
  EXPECT_TRUE(layer.weight.grad().defined());
}

}  // namespace
}  // namespace fsdp::testing
