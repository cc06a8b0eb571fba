// fsdp::linear has the results of at::linear, however its weight is used.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "tests/unit/fsdp_runtime/engine/one_linear.h"

namespace fsdp::testing {
namespace {

struct Results {
  std::vector<at::Tensor> tensors;  // output, the input's gradient and the parameters' gradients
  bool has_own_node = false;
};

Results results_of(const Rank& rank, LinearCall call, const at::Tensor& x, int64_t out,
                   bool has_bias) {
  OneLayer one(rank, call, x.size(-1), out, has_bias);
  const at::Tensor input = x.detach().requires_grad_();
  const at::Tensor output = one.layer(input);
  at::Tensor weights = batch(output.sizes(), 0.1);
  if (output.dim() == 2) {
    weights = batch({output.size(1), output.size(0)}, 0.1).t();  // so is the output's gradient
  }
  (output * weights).sum().backward();
  Results results{one.gradients(), one.layer->made_by == "FsdpLinearBackward"};
  results.tensors.push_back(output.detach());
  results.tensors.push_back(input.grad());
  return results;
}

TEST(LinearTest, HasTheBitsOfAtens) {
  struct Input {
    at::Tensor x;
    bool has_own_node = true;
  };
  run_ranks(2, [](Rank& rank) {
    for (const bool has_bias : {false, true}) {
      for (const auto& [x, has_own_node] : std::vector<Input>{
               {batch({7, 24})},
               {batch({3, 5, 24})},
               {batch({2, 3, 4, 24})},
               {batch({1, 1, 24})},
               {batch({1, 9, 24})},
               {batch({5, 1})},
               {batch({64, 256}).mul(1e4)},
               {batch({5, 1, 24}).transpose(0, 1), false},  // contiguous all the same
               {batch({1, 5}).t(), false},
               {batch({1, 1}), false},
               {batch({24}), false},
               {batch({24, 6}).t(), false},
               {batch({0, 24}), false},
               {batch({3, 1, 24}).expand({3, 5, 24}), false}}) {
        const Results own = results_of(rank, linear, x, 40, has_bias);
        const Results atens = results_of(rank, aten_linear, x, 40, has_bias);
        EXPECT_EQ(own.has_own_node, has_own_node) << x.sizes() << x.strides();
        ASSERT_EQ(own.tensors.size(), atens.tensors.size());
        for (size_t i = 0; i < own.tensors.size(); ++i) {
          EXPECT_TRUE(at::equal(own.tensors[i], atens.tensors[i])) << x.sizes() << ", result " << i;
        }
      }
    }
  });
}

// A checkpoint runs a backward of its own inside the outer one, where the gradient of the last use
// waits for the others meanwhile.
TEST(LinearTest, AWeightThatACheckpointUsesTooGetsTheSum) {
  struct Three : torch::nn::Module {
    explicit Three(LinearCall call) : call(call) {}
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor first = call(x, weight, {});
      const at::Tensor second =
          activation_checkpoint([this](const at::Tensor& t) { return call(t, weight, {}); }, first);
      return call(second, weight, {});
    }
    LinearCall call;
    at::Tensor weight =
        register_parameter("weight", at::sin(at::arange(24 * 24, at::kFloat)).view({24, 24}) * 0.2);
  };
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      std::vector<at::Tensor> sums;
      for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
        Unit<Three> model(std::make_shared<Three>(call));
        FullyShardOptions options;
        options.mesh = rank.mesh;
        const FSDPModule root = fully_shard(model.ptr(), options);
        model(batch({6, 24}).requires_grad_()).square().sum().backward();
        sums.push_back(root.sharded_gradients()[0].local.clone());
      }
      EXPECT_TRUE(at::equal(sums[0], sums[1]));
    });
  }
}

// The unit ends, and gives its memory away, while its gradient waits for that of a use outside.
TEST(LinearTest, AWeightThatIsUsedOutsideItsUnitGetsTheSum) {
  struct Around : torch::nn::Module {
    explicit Around(LinearCall call) : layer(std::make_shared<LinearLayer>(24, 24, false, call)) {
      register_module("layer", layer.ptr());
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor outside = at::linear(x, layer->weight * scale);
      return layer(outside);
    }
    Unit<LinearLayer> layer;
    at::Tensor scale = register_parameter("scale", at::ones({1}));
  };
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      std::vector<at::Tensor> sums;
      for (const LinearCall call : {LinearCall{linear}, LinearCall{aten_linear}}) {
        Unit<Around> model(std::make_shared<Around>(call));
        FullyShardOptions options{
            .mesh = rank.mesh, .reshard_after_forward = false, .mp_policy = {}};
        fully_shard(model->layer.ptr(), options);
        FSDPModule root = fully_shard(model.ptr(), options);
        root.set_reshard_after_backward(false);
        fsdp_module(*model->layer).unshard();
        (model(batch({6, 24}).requires_grad_()) * 1e-2).square().sum().backward();
        sums.push_back(root.sharded_gradients().at(1).local.clone());
        EXPECT_EQ(root.sharded_gradients().at(1).fqn, "layer.weight");
      }
      EXPECT_GT(sums[0].abs().max().item<float>(), 0);
      EXPECT_TRUE(at::allclose(sums[0], sums[1], 1e-6, 0)) << (sums[0] - sums[1]).abs().max();
    });
  }
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
    at::Tensor result = one.layer(batch({6, 24}, 1)).sum();  // which keeps nothing itself
    result.backward();
    EXPECT_THROW(result.backward(), c10::Error);
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
  LinearLayer layer(24, 40, true, linear);
  const at::Tensor output = layer.forward(batch({6, 24}));
  EXPECT_NE(output.grad_fn()->name(), "FsdpLinearBackward");
  output.square().sum().backward();
  EXPECT_TRUE(layer.weight.grad().defined());
}

}  // namespace
}  // namespace fsdp::testing
