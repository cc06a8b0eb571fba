#include <fsdp/sharded.h>
#include <fsdp/unit.h>
#include <fsdp/wrap.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {
namespace {

struct WrapBlockImpl : torch::nn::Module {
  explicit WrapBlockImpl(int64_t width) : up(width, 2 * width), down(2 * width, width) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) { return x + down(at::relu(up(x))); }
  torch::nn::Linear up, down;
};
using WrapBlock = torch::nn::ModuleHolder<fsdp::Sharded<WrapBlockImpl>>;

struct WrapHeadImpl : torch::nn::Module {
  explicit WrapHeadImpl(const at::Tensor& given) : weight(register_parameter("weight", given)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(WrapHead);

/// An embedding, a list of blocks and a head: a root for policies.
struct WrapModelImpl : torch::nn::Module {
  explicit WrapModelImpl(int64_t depth, bool is_tied = false)
      : embedding(7, 4), head(is_tied ? embedding->weight : at::ones({7, 4})) {
    register_module("embedding", embedding);
    register_module("blocks", blocks);
    for (int64_t i = 0; i < depth; ++i) {
      blocks->push_back(WrapBlock(4));
    }
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor tokens) {
    at::Tensor x = embedding(tokens);
    for (const auto& block : *blocks) {
      x = block->as<WrapBlock>()->forward(x);
    }
    return head(x);
  }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
  WrapHead head;
};
using WrapModel = torch::nn::ModuleHolder<fsdp::Sharded<WrapModelImpl>>;

std::vector<std::string> names_of(const std::vector<WrappedUnit>& units) {
  std::vector<std::string> names;
  for (const WrappedUnit& unit : units) {
    names.push_back(unit.name);
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(WrapTest, ClassPolicyChoosesHoldersAndModulesOfItsTypes) {
  WrapModel model(2);
  const auto by_holder = transformer_auto_wrap_policy<WrapBlock>();
  const Names expected = {"blocks.0", "blocks.1", ""};
  EXPECT_EQ(names_of(planned_units(model, by_holder)), expected);
  EXPECT_EQ(names_of(planned_units(model, module_wrap_policy<WrapBlockImpl>())), expected);
  const auto two = module_wrap_policy<WrapBlock, torch::nn::Embedding>();
  EXPECT_EQ(names_of(planned_units(model, two)), (Names{"embedding", "blocks.0", "blocks.1", ""}));
}

TEST(WrapTest, PlanTellsWhatEachUnitTakesAndWhoRunsItsHooks) {
  WrapModel model(1);
  const auto units = planned_units(model, always_wrap_policy());
  EXPECT_EQ(names_of(units),
            (Names{"embedding", "blocks.0.up", "blocks.0.down", "blocks.0", "head", ""}));
  EXPECT_EQ(units[0].numel, 28);
  EXPECT_EQ(units[1].numel, 40);
  EXPECT_EQ(units[3].numel, 0);
  EXPECT_EQ(units[5].numel, 0);
  EXPECT_FALSE(units[0].runs_hooks);
  EXPECT_TRUE(units[3].runs_hooks);
  EXPECT_NE(units[0].type.find("EmbeddingImpl"), std::string::npos) << units[0].type;
}

TEST(WrapTest, SizePolicyLeavesSmallModulesToThoseAroundThem) {
  WrapModel model(2);
  const auto names = [&](SizeBasedOptions options) {
    return names_of(planned_units(model, size_based_auto_wrap_policy(options)));
  };
  EXPECT_EQ(names({.min_num_params = 60}), (Names{"blocks.0", "blocks.1", ""}));
  EXPECT_EQ(names({.min_num_params = 40}), (Names{"blocks.0.up", "blocks.1.up", ""}));
  EXPECT_EQ(names({}), Names{""});
  EXPECT_EQ(names({.min_num_params = 40, .force_leaf_modules = module_types<WrapBlock>()}),
            Names{""});
  EXPECT_EQ(
      names({.min_num_params = 40, .exclude_wrap_modules = module_types<torch::nn::Linear>()}),
      (Names{"blocks.0", "blocks.1", ""}));
}

TEST(WrapTest, AttentionOfLibTorchIsALeafOfTheSizePolicy) {
  struct Outer : torch::nn::Module {
    torch::nn::MultiheadAttention attention =
        register_module("attention", torch::nn::MultiheadAttention(4, 2));
    torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 4));
  };
  const auto policy = size_based_auto_wrap_policy({.min_num_params = 20});
  EXPECT_EQ(names_of(planned_units(std::make_shared<Outer>(), policy)), (Names{"linear", ""}));
}

TEST(WrapTest, PoliciesAreJoinedAndTheFirstYesHasTheOptions) {
  run_ranks(1, [](Rank& rank) {
    WrapModel model(2);
    const FullyShardOptions options{.mesh = rank.mesh};
    FullyShardOptions keeps = options;
    keeps.reshard_after_forward = false;
    const auto custom = custom_policy([&](const torch::nn::Module& module) -> WrapDecision {
      if (&module == model->head.get()) {
        return keeps;
      }
      return false;
    });
    const auto policy = or_policy({custom, module_wrap_policy<WrapBlock>(), always_wrap_policy()});
    EXPECT_EQ(planned_units(model, policy).size(), 9u);
    const auto joined = or_policy({custom, module_wrap_policy<WrapBlock>()});
    const FSDPModule root = fully_shard(model, joined, options);
    EXPECT_EQ(root.units().size(), 4u);
    const FSDPModule head = fsdp_module(*model->head);
    ASSERT_TRUE(head);
    EXPECT_FALSE(fsdp_module(*model->embedding));
  });
}

TEST(WrapTest, AParameterOfTwoUnitsIsRefusedAndNothingIsSharded) {
  run_ranks(1, [](Rank& rank) {
    WrapModel model(1, /*is_tied=*/true);
    const FullyShardOptions options{.mesh = rank.mesh};
    const auto apart = module_wrap_policy<torch::nn::Embedding, WrapBlock>();
    const std::string said = refusal([&] { fully_shard(model, apart, options); });
    for (const char* part :
         {"embedding.weight is the same tensor as head.weight", "in embedding, a", "in the root"}) {
      EXPECT_NE(said.find(part), std::string::npos) << said;
    }
    EXPECT_FALSE(fsdp_module(*model->blocks->ptr(0)));
    const FSDPModule root = fully_shard(model, module_wrap_policy<WrapBlock>(), options);
    EXPECT_EQ(root.units().size(), 2u);
  });
}

TEST(WrapTest, IgnoredModulesAreNeitherUnitsNorSharded) {
  run_ranks(2, [](Rank& rank) {
    WrapModel model(2);
    const auto head = std::static_pointer_cast<torch::nn::Module>(model->head.ptr());
    const auto first = model->blocks->ptr(0);
    const FSDPModule root =
        fully_shard(model, always_wrap_policy(), {.mesh = rank.mesh}, {head, first});
    EXPECT_FALSE(fsdp_module(*head));
    EXPECT_FALSE(fsdp_module(*first));
    for (const LocalShard& shard : root.sharded_parameters()) {
      EXPECT_FALSE(shard.fqn.starts_with("head") || shard.fqn.starts_with("blocks.0")) << shard.fqn;
    }
    EXPECT_EQ(model->head->weight.norm().numel(), 1);  // has its data
  });
}

TEST(WrapTest, MisuseIsRefused) {
  WrapModel model(1);
  const auto policy = always_wrap_policy();
  const std::shared_ptr<torch::nn::Module> none;
  const auto stranger = std::make_shared<WrapBlockImpl>(3);
  refusal([&] { planned_units(none, policy); });
  refusal([&] { planned_units(model, policy, {none}); });
  refusal([&] { planned_units(model, policy, {stranger}); });
  refusal([&] { planned_units(model, policy, {model.ptr()}); });
  refusal([] { WrapPolicy{WrapPolicy::Wraps()}; });
  refusal([] { lambda_auto_wrap_policy({}); });
  refusal([] { custom_policy({}); });
}

TEST(WrapTest, WhatIsShardedBeforeIsLeftAlone) {
  run_ranks(1, [](Rank& rank) {
    WrapModel model(2);
    const FSDPModule first = fully_shard(model->blocks->ptr(0), {.mesh = rank.mesh});
    const FSDPModule root =
        fully_shard(model, module_wrap_policy<WrapBlock>(), {.mesh = rank.mesh});
    ASSERT_EQ(root.units().size(), 3u);
    EXPECT_EQ(root.units()[1].state(), first.state());
  });
}

// LibTorch's own modules, which no user's code calls as units.
TEST(WrapTest, EntriesOfASequentialRunAsUnits) {
  run_ranks(2, [](Rank& rank) {
    const auto make = [] {
      torch::nn::Sequential model{torch::nn::Linear(4, 6), torch::nn::ReLU(),
                                  torch::nn::Linear(6, 2)};
      at::NoGradGuard no_grad;
      for (at::Tensor& param : model->parameters()) {
        param.copy_(at::arange(param.numel(), at::kFloat).view(param.sizes()).sin());
      }
      return model;
    };
    torch::nn::Sequential plain = make();
    torch::nn::Sequential model = make();
    const auto policy = module_wrap_policy<torch::nn::Linear>();
    for (const WrappedUnit& unit : planned_units(model, policy)) {
      EXPECT_EQ(unit.runs_hooks, !unit.name.empty()) << unit.name;
    }
    const FSDPModule root = fully_shard(model, policy, {.mesh = rank.mesh});
    const Unit<torch::nn::SequentialImpl> unit(model.ptr());
    const at::Tensor x = at::ones({3, 4});
    const at::Tensor expected = plain->forward(x);
    for (int64_t step = 0; step < 2; ++step) {
      EXPECT_TRUE(at::equal(unit(x), expected));
    }
    expected.sum().backward();
    unit(x).sum().backward();
    const at::Tensor gradient = plain->parameters()[0].grad();
    const LocalShard first = root.sharded_gradients()[0];
    EXPECT_EQ(first.fqn, "0.weight");
    LocalShard part = first;
    part.local = at::empty_like(first.local);
    copy_part_of(gradient, part);
    EXPECT_TRUE(at::allclose(first.local, part.local));
    EXPECT_EQ(model->named_parameters().keys(), plain->named_parameters().keys());
  });
}

TEST(WrapTest, AUnitThatIsCalledAsAPlainModuleSaysWhatToDo) {
  run_ranks(1, [](Rank& rank) {
    WrapModel model(1);
    fully_shard(model, module_wrap_policy<torch::nn::Embedding>(), {.mesh = rank.mesh});
    const std::string said = refusal([&] { model(at::zeros({2}, at::kLong)); });
    EXPECT_NE(said.find("embedding.weight"), std::string::npos) << said;
    EXPECT_NE(said.find("fsdp::Unit"), std::string::npos) << said;
  });
}

TEST(WrapTest, AModelByPolicyTrains) {
  run_ranks(2, [](Rank& rank) {
    WrapModel model(2);
    const FSDPModule root =
        fully_shard(model, module_wrap_policy<WrapBlock>(), {.mesh = rank.mesh});
    model(at::arange(7)).sum().backward();
    for (const LocalShard& gradient : root.sharded_gradients()) {
      EXPECT_TRUE(gradient.local.defined()) << gradient.fqn;
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
