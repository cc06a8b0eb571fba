// Backwards through graphs that are not one forward of the root: parts of it, several, again.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "tests/unit/fsdp_runtime/engine/line_chain.h"

namespace fsdp::testing {
namespace {

struct TwoResults : torch::nn::Module {
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {at::linear(x, first), at::linear(x, second)};
  }
  at::Tensor first = register_parameter("first", at::eye(5) * 0.5);
  at::Tensor second = register_parameter("second", at::eye(5) * 0.25);
};

struct HasTwoResults : torch::nn::Module {
  HasTwoResults() { register_module("inner", inner.ptr()); }
  at::Tensor forward(const at::Tensor& x) {
    auto [first, second] = inner(at::linear(x, weight));
    return uses_first ? first : second;
  }
  Unit<TwoResults> inner{std::make_shared<TwoResults>()};
  at::Tensor weight = register_parameter("weight", at::eye(5));
  bool uses_first = true;
};

// Rank 0 uses one of them, the others the other.
TEST(OddGraphsTest, AResultThatIsNotUsedLeavesItsParametersWithoutGradient) {
  for (const bool differ : {false, true}) {
    run_ranks(2, [differ](Rank& rank) {
      const auto pass = [differ](const Unit<HasTwoResults>& model, int64_t r) {
        model->uses_first = !differ || r == 0;
        model(chain_input(r)).square().sum().backward();
      };
      Gradients expected;
      for (int64_t r = 0; r < 2; ++r) {
        const Unit<HasTwoResults> plain(std::make_shared<HasTwoResults>());
        pass(plain, r);
        for (const auto& param : plain->named_parameters()) {
          if (param.value().grad().defined()) {
            at::Tensor& sum = expected[param.key()];
            sum = sum.defined() ? sum + param.value().grad() / 2 : param.value().grad() / 2;
          }
        }
      }
      EXPECT_EQ(expected.size(), differ ? 3u : 2u);
      Unit<HasTwoResults> model(std::make_shared<HasTwoResults>());
      fully_shard(model->inner.ptr(), {.mesh = rank.mesh});
      const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
      for (int step = 0; step < 2; ++step) {  // again, with what the first has recorded
        AdamW(root, {}).zero_grad();
        pass(model, rank.rank);
        expect_gradients(rank, root, expected, 1e-6);
      }
    });
  }
}

TEST(OddGraphsTest, AUnitWhoseResultIsDroppedHasNoGradient) {
  expect_as_without_sharding([](const Unit<Chain>& model, int64_t rank) {
    const at::Tensor dropped = model->lines[1](chain_input(rank));
    model->order = {0, 2};
    chain_loss(model, rank).backward();
  });
}

// A detached activation: what is before it takes no part.
TEST(OddGraphsTest, WhatIsBeforeADetachHasNoGradient) {
  expect_as_without_sharding([](const Unit<Chain>& model, int64_t rank) {
    model->cuts_behind_first = true;
    chain_loss(model, rank).backward();
  });
}

// As in preference training: two forwards of the policy, one of the reference between.
TEST(OddGraphsTest, TwoForwardsWithOneWithoutGradModeBetweenHaveOneBackward) {
  for (const bool checkpoints : {false, true}) {
    expect_as_without_sharding([checkpoints](const Unit<Chain>& model, int64_t rank) {
      model->checkpoints = checkpoints;
      const at::Tensor chosen = chain_loss(model, rank, 0);
      at::Tensor reference;
      {
        at::NoGradGuard no_grad;
        reference = chain_loss(model, rank, 2);
      }
      const at::Tensor rejected = chain_loss(model, rank, 1);
      (chosen * reference - rejected).backward();
    });
  }
}

// The second forward runs some units, or one of them twice.
TEST(OddGraphsTest, ForwardsOfDifferentUnitsHaveOneBackward) {
  using Order = std::vector<size_t>;
  for (const auto& orders : std::vector<std::pair<Order, Order>>{
           {{0, 1, 2}, {0, 1}}, {{0, 1}, {0, 1, 2}}, {{0, 2}, {1}}, {{0, 1, 1, 2}, {2, 0}}}) {
    for (const bool checkpoints : {false, true}) {
      expect_as_without_sharding([&, checkpoints](const Unit<Chain>& model, int64_t rank) {
        model->checkpoints = checkpoints;
        model->order = orders.first;
        const at::Tensor one = chain_loss(model, rank, 0);
        model->order = orders.second;
        (one + chain_loss(model, rank, 1)).backward();
      });
    }
  }
}

TEST(OddGraphsTest, AUnitThatRunsAloneIsReducedByItself) {
  expect_as_without_sharding([](const Unit<Chain>& model, int64_t rank) {
    model->lines[1](chain_input(rank)).square().sum().backward();
    chain_loss(model, rank).backward();
    model->lines[2](chain_input(rank, 1).requires_grad_()).square().sum().backward();
  });
}

// The first part of the graph is kept for the second backward, which takes another way behind it.
TEST(OddGraphsTest, TwoLossesShareAPartOfTheGraph) {
  expect_as_without_sharding([](const Unit<Chain>& model, int64_t rank) {
    const at::Tensor y = model(chain_input(rank));
    y.sum().backward({}, /*retain_graph=*/true);
    y.square().sum().backward();
  });
}

TEST(OddGraphsTest, ARetainedGraphIsRunAgainWithoutSyncAndWithIt) {
  for (const bool checkpoints : {false, true}) {
    run_ranks(2, [checkpoints](Rank& rank) {
      const auto pass = [checkpoints](const Unit<Chain>& model, int64_t r,
                                      const std::function<void()>& between) {
        model->checkpoints = checkpoints;
        const at::Tensor result = chain_loss(model, r);
        result.backward({}, /*retain_graph=*/true);
        between();
        result.backward();
      };
      const ShardedChain setup = shard_chain(rank);
      setup.root.set_requires_gradient_sync(false);
      pass(setup.model, rank.rank, [&] { setup.root.set_requires_gradient_sync(true); });
      expect_gradients(
          rank, setup.root,
          chain_gradients(2, [&](const Unit<Chain>& model, int64_t r) { pass(model, r, [] {}); }),
          1e-6);
    });
  }
}

// A unit that runs in every other step only keeps its gradient of none in between.
TEST(OddGraphsTest, AUnitThatRunsInSomeStepsOnlyTrainsInThose) {
  run_ranks(2, [](Rank& rank) {
    const ShardedChain setup = shard_chain(rank);
    for (int64_t step = 0; step < 4; ++step) {
      const auto pass = [step](const Unit<Chain>& model, int64_t r) {
        model->order = step % 2 == 0 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{0, 2};
        chain_loss(model, r, step).backward();
      };
      pass(setup.model, rank.rank);
      expect_gradients(rank, setup.root, chain_gradients(2, pass), 1e-6);
      AdamW(setup.root, {}).zero_grad();
    }
  });
}

/// Autograd has threads for devices: what is on another one than the parameters is passed through
/// at the same time as they are. "meta" stands for it.
struct Moved : torch::autograd::Function<Moved> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            c10::Device device) {
    context->saved_data["device"] = x.device();
    return at::ones(x.sizes(), device);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const c10::Device device = context->saved_data["device"].toDevice();
    return {at::ones(gradients[0].sizes(), device), at::Tensor()};
  }
};

struct FarAway : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    history = x.grad_fn();
    const at::Tensor here = x.is_meta() ? Moved::apply(x, c10::Device(c10::kCPU)) : x;
    return Moved::apply(at::linear(here, weight), c10::Device(c10::kMeta)) * 2;
  }
  at::Tensor weight = register_parameter("weight", at::eye(5) * 0.5);
  std::shared_ptr<torch::autograd::Node> history;  // of the input, in forward
};

struct HasFarAway : torch::nn::Module {
  HasFarAway() { register_module("inner", inner.ptr()); }
  at::Tensor forward(const at::Tensor& x) { return inner(x); }
  Unit<FarAway> inner{std::make_shared<FarAway>()};
};

TEST(OddGraphsTest, ResultsOnAnotherDeviceHaveTheirHooksWhereTheParametersAre) {
  run_ranks(2, [](Rank& rank) {
    const Unit<HasFarAway> model(std::make_shared<HasFarAway>());
    fully_shard(model->inner.ptr(), {.mesh = rank.mesh});
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    const at::Tensor x = chain_input(rank.rank).requires_grad_();
    const at::Tensor result = model(x);
    const auto scaled = result.grad_fn();
    const auto moved = scaled->next_edge(0).function;
    const auto computed = moved->next_edge(0).function;
    EXPECT_TRUE(scaled->tensor_pre_hooks().empty());
    EXPECT_TRUE(moved->tensor_pre_hooks().empty());
    EXPECT_EQ(computed->tensor_pre_hooks().size(), 2u);  // one of each unit
    result.sum().backward();  // reads the weights, which have been resharded
    EXPECT_TRUE(at::equal(x.grad(), at::full_like(x, 0.5)));
    const at::Tensor ones = at::ones({x.size(0), 5});
    expect_gradients(
        rank, root,
        {{"inner.weight", (ones.t().mm(chain_input(0)) + ones.t().mm(chain_input(1))) / 2}}, 1e-6);
  });
}

TEST(OddGraphsTest, InputsOnAnotherDeviceDoNotTellThatAUseEnds) {
  run_ranks(2, [](Rank& rank) {
    const Unit<HasFarAway> model(std::make_shared<HasFarAway>());
    fully_shard(model->inner.ptr(), {.mesh = rank.mesh});
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    const at::Tensor far = at::ones({3, 5}, at::kMeta).requires_grad_();
    const at::Tensor result = model(far);
    EXPECT_EQ(model->inner->history, nullptr);
    result.sum().backward();
    EXPECT_TRUE(far.grad().is_meta());
    expect_gradients(rank, root, {{"inner.weight", at::full({5, 5}, 3.0)}});
  });
}

}  // namespace
}  // namespace fsdp::testing
