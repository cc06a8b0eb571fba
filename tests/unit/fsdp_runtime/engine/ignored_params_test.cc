#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// The toy model, of which the root's gain and a block's weight are ignored.
struct WithIgnored {
  explicit WithIgnored(const Rank& rank) : model(std::make_shared<ToyModel>(ToyConfig{})) {
    FullyShardOptions options{.mesh = rank.mesh,
                              .ignored_params = {model->gain, model->blocks[1]->up}};
    {
      const at::NoGradGuard no_grad;
      initialise("gain", model->gain);
      initialise("block1.up", model->blocks[1]->up);
    }
    gain_at = model->gain.const_data_ptr();
    for (const Unit<ToyBlock>& block : model->blocks) {
      fully_shard(block.ptr(), options);
    }
    root = fully_shard(model.ptr(), options);
    root.init_parameters(initialise);
  }
  Unit<ToyModel> model;
  FSDPModule root;
  const void* gain_at = nullptr;
};

TEST(IgnoredParamsTest, StayWhereAndWhatTheyAre) {
  run_ranks(2, [](Rank& rank) {
    WithIgnored setup(rank);
    std::vector<std::string> names;
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      names.push_back(shard.fqn);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"embedding", "block0.up", "block0.bias",
                                               "block0.down", "block0.spare", "block1.bias",
                                               "block1.down", "block1.spare", "block2.up",
                                               "block2.bias", "block2.down", "block2.spare"}));
    EXPECT_EQ(setup.root.parameters().size(), names.size());
    EXPECT_EQ(setup.model->gain.const_data_ptr(), setup.gain_at);
    at::Tensor expected = at::empty({15});
    initialise("gain", expected);
    EXPECT_TRUE(at::equal(setup.model->gain, expected));
  });
}

TEST(IgnoredParamsTest, TheirGradientsAreThoseOfThisRankAlone) {
  run_ranks(2, [](Rank& rank) {
    WithIgnored setup(rank);
    PlainTraining plain({}, 2, {});
    Gradients reduced = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    reduced.erase("gain");
    reduced.erase("block1.up");
    plain.model->zero_grad();
    const at::Tensor expected_loss = loss(plain.model, 0, rank.rank);
    expected_loss.backward();

    rank.comm->clear();
    const at::Tensor result = loss(setup.model, 0, rank.rank);
    EXPECT_EQ(result.item<float>(), expected_loss.item<float>());
    result.backward();
    EXPECT_EQ(count(rank, "all_gather"), 4 + 3);
    EXPECT_EQ(count(rank, "reduce_scatter"), 4);
    expect_gradients(rank, setup.root, reduced);
    EXPECT_TRUE(at::equal(setup.model->gain.grad(), plain.model->gain.grad()));
    EXPECT_TRUE(at::equal(setup.model->blocks[1]->up.grad(), plain.model->blocks[1]->up.grad()));
  });
}

// A parameter that could not be sharded is one reason to ignore it.
TEST(IgnoredParamsTest, NeedNotBeShardable) {
  struct Scaled : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x * weight * scale; }
    at::Tensor weight = register_parameter("weight", at::full({3}, 2.0));
    at::Tensor scale = register_parameter("scale", at::full({}, 3.0));
  };
  run_ranks(2, [](Rank& rank) {
    Unit<Scaled> model(std::make_shared<Scaled>());
    EXPECT_NE(refusal([&] { fully_shard(model.ptr(), {.mesh = rank.mesh}); }).find("scale"),
              std::string::npos);
    fully_shard(model.ptr(), {.mesh = rank.mesh, .ignored_params = {model->scale}});
    const at::Tensor result = model(at::ones({3}));
    EXPECT_EQ(result.sum().item<float>(), 18.0F);
    result.sum().backward();
    EXPECT_EQ(model->scale.grad().item<float>(), 6.0F);
  });
}

TEST(IgnoredParamsTest, AParameterOfAnotherUnitCanBeIgnoredInASharedPlace) {
  struct Holder : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", at::ones({4}));
  };
  struct Both : torch::nn::Module {
    std::shared_ptr<Holder> holder = register_module("holder", std::make_shared<Holder>());
    at::Tensor tied = register_parameter("tied", holder->weight);
    at::Tensor own = register_parameter("own", at::ones({5}));
  };
  run_ranks(2, [](Rank& rank) {
    const auto model = std::make_shared<Both>();
    fully_shard(model->holder, {.mesh = rank.mesh});
    EXPECT_NE(refusal([&] { fully_shard(model, {.mesh = rank.mesh}); }).find("same tensor"),
              std::string::npos);
    const FSDPModule root =
        fully_shard(model, {.mesh = rank.mesh, .ignored_params = {model->tied}});
    EXPECT_EQ(root.sharded_parameters().size(), 2u);
  });
}

}  // namespace
}  // namespace fsdp::testing
