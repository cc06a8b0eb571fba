// Modules as a user writes them: what LibTorch's ways of holding, finding and calling them do.

#include <fsdp/sharded.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(double by) : by(by) {}
  at::Tensor forward(at::Tensor x) { return x * weight * by; }
  double by;
  at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
};
using Scale = torch::nn::ModuleHolder<fsdp::Sharded<ScaleImpl>>;

/// Two blocks, found as Python's `for block in self.blocks` finds them.
struct ScalesImpl : torch::nn::Module {
  ScalesImpl() {
    blocks->push_back(Scale(1.0));
    blocks->push_back(Scale(2.0));
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& block : *blocks) {
      x = block->as<Scale>()->forward(x);
    }
    return last(x);
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  Scale last = register_module("last", Scale(0.5));
};
using Scales = torch::nn::ModuleHolder<fsdp::Sharded<ScalesImpl>>;

void shard(const Rank& rank, const Scales& model) {
  for (const auto& block : *model->blocks) {
    fully_shard(block, {.mesh = rank.mesh});
  }
  fully_shard(model->last, {.mesh = rank.mesh});
  fully_shard(model, {.mesh = rank.mesh});
}

TEST(ShardedModuleTest, IsHeldFoundAndCalledAsAModuleOfTorchModule) {
  run_ranks(2, [](Rank& rank) {
    Scales model;
    EXPECT_TRUE(model);
    EXPECT_FALSE(Scale(nullptr));
    EXPECT_NE(refusal([] { fully_shard(Scale(nullptr)); }).find("empty ModuleHolder"),
              std::string::npos);
    shard(rank, model);
    const at::Tensor x = at::ones({2}).requires_grad_();
    model(x).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 27.0)));
    std::vector<std::string> names;
    for (const LocalShard& gradient : fsdp_module(*model).sharded_gradients()) {
      names.push_back(gradient.fqn);
      EXPECT_TRUE(gradient.local.defined()) << gradient.fqn;
    }
    EXPECT_EQ(names,
              (std::vector<std::string>{"blocks.0.weight", "blocks.1.weight", "last.weight"}));
  });
}

TEST(ShardedModuleTest, WhoeverFindsItAsWhatItIsMadeOfIsToldHowToFindIt) {
  run_ranks(2, [](Rank& rank) {
    Scales model;
    shard(rank, model);
    ScaleImpl* found = model->blocks[1]->as<ScaleImpl>();
    const std::string said = refusal([&] { found->forward(at::ones({2})); });
    EXPECT_EQ(said.find("fsdp: parameter blocks.1.weight is sharded now"), 0U) << said;
    EXPECT_NE(said.find("as<fsdp::Sharded<M>>(), as<M>() is not enough"), std::string::npos)
        << said;
  });
}

TEST(ShardedModuleTest, AVirtualForwardRunsTheHooksForWhoeverFindsItAsWhatItIsMadeOf) {
  struct Virtual : torch::nn::Module {
    virtual at::Tensor forward(const at::Tensor& x) const { return x * weight; }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
  };
  run_ranks(2, [](Rank& rank) {
    const auto module = std::make_shared<fsdp::Sharded<Virtual>>();
    const FSDPModule handle = fully_shard(module, {.mesh = rank.mesh});
    torch::nn::Module& any = *module;
    any.as<Virtual>()->forward(at::ones({2})).sum().backward();
    EXPECT_TRUE(handle.sharded_gradients()[0].local.defined());
  });
}

TEST(ShardedModuleTest, AUnitOfOneCallsItOnce) {
  run_ranks(2, [](Rank& rank) {
    const Unit<fsdp::Sharded<ScaleImpl>> unit(std::make_shared<fsdp::Sharded<ScaleImpl>>(2.0));
    const FSDPModule handle = fully_shard(unit.ptr(), {.mesh = rank.mesh});
    const at::Tensor found = unit(at::ones({2}));
    EXPECT_TRUE(at::equal(found, at::full({2}, 6.0)));
    found.sum().backward();
    EXPECT_TRUE(handle.sharded_gradients()[0].local.defined());
  });
}

TEST(ShardedModuleTest, WhatCannotBeOneIsKnownBeforeItIsMade) {
  struct Overloaded : torch::nn::Module {
    at::Tensor forward(at::Tensor x) { return x; }
    at::Tensor forward(at::Tensor x, double by) { return x * by; }
  };
  class Hidden : public torch::nn::Module {
   protected:
    at::Tensor forward(at::Tensor x) { return x; }
  };
  EXPECT_TRUE(detail::HasOneForward<ScaleImpl>);
  EXPECT_TRUE(detail::HasOneForward<torch::nn::LinearImpl>);
  EXPECT_FALSE(detail::HasOneForward<Overloaded>);
  EXPECT_FALSE(detail::HasOneForward<Hidden>);
  EXPECT_FALSE(detail::HasOneForward<torch::nn::ModuleListImpl>);  // has none
  EXPECT_FALSE(detail::HasOneForward<torch::nn::SequentialImpl>);  // a template
}

// The example of Unit: registered in a list, called through handles.
TEST(ShardedModuleTest, UnitsAreRegisteredInAModuleList) {
  struct Model : torch::nn::Module {
    explicit Model(int64_t count) {
      register_module("layers", registered);
      for (int64_t i = 0; i < count; ++i) {
        layers.emplace_back(std::make_shared<ScaleImpl>(1.0));
        registered->push_back(layers.back().ptr());
      }
    }
    at::Tensor forward(at::Tensor x) {
      for (const Unit<ScaleImpl>& layer : layers) {
        x = layer(x);
      }
      return x;
    }
    torch::nn::ModuleList registered;
    std::vector<Unit<ScaleImpl>> layers;
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Model> model(std::make_shared<Model>(2));
    for (const Unit<ScaleImpl>& layer : model->layers) {
      fully_shard(layer.ptr(), {.mesh = rank.mesh});
    }
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    model(at::ones({2})).sum().backward();
    EXPECT_EQ(root.parameters().size(), 2U);
    EXPECT_EQ(root.named_parameters()[1].first, "layers.1.weight");
  });
}

// What there is in place of a meta device: of a model of stock modules one is whole at a time.
TEST(ShardedModuleTest, AModelOfStockModulesIsMadeAndShardedOneByOne) {
  using Linear = torch::nn::ModuleHolder<fsdp::Sharded<torch::nn::LinearImpl>>;
  run_ranks(2, [](Rank& rank) {
    torch::nn::Sequential model;
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> drawn;
    for (size_t i = 0; i < 3; ++i) {
      const Linear layer(8, 8);
      drawn.emplace_back(layer->weight.storage().getWeakStorageImpl());
      model->push_back(layer);
      const at::Tensor weight = layer->weight.detach().clone();
      const FSDPModule sharded = fully_shard(model->ptr(i), {.mesh = rank.mesh});
      const LocalShard own = sharded.sharded_parameters()[0];
      EXPECT_TRUE(at::equal(own.local, part_of(weight, own)));
      EXPECT_TRUE(drawn.back().expired()) << "layer " << i << " is still whole";
    }
    fully_shard(model, {.mesh = rank.mesh});  // of a class of TORCH_MODULE
    EXPECT_TRUE(
        call(
            *model, [&](const at::Tensor& x) { return model->forward(x); }, at::ones({2, 8}))
            .requires_grad());
  });
}

}  // namespace
}  // namespace fsdp::testing
