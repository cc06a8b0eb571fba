#include <fsdp/full_params.h>
#include <fsdp/initialize.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

/// LibTorch's own layers, with their own ways to draw.
struct StockImpl : torch::nn::Module {
  StockImpl() {
    register_module("embedding", embedding);
    register_module("linear", linear);
    register_module("norm", norm);
    register_module("conv", conv);
    register_module("batch_norm", batch_norm);
    register_module("lstm", lstm);
    register_module("attention", attention);
  }
  torch::nn::Embedding embedding{torch::nn::EmbeddingOptions(19, 8).padding_idx(3)};
  torch::nn::Linear linear{8, 5};
  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({8})};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
  torch::nn::BatchNorm2d batch_norm{4};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(6, 4).num_layers(2)};
  torch::nn::MultiheadAttention attention{8, 2};
};
TORCH_MODULE(Stock);

/// What constructors of users do.
struct HandmadeImpl : torch::nn::Module {
  HandmadeImpl() {
    register_module("again", again);
    at::NoGradGuard no_grad;
    again->weight.normal_(0, 0.02);  // what the layer has drawn is gone, but was drawn
    again->bias.zero_();
    orthogonal = register_parameter("orthogonal", torch::empty({6, 4}));
    torch::nn::init::orthogonal_(orthogonal);
    table = register_buffer("table", at::outer(at::arange(5).to(at::kFloat), at::ones({3})).cos());
    mask = register_buffer("mask", at::ones({4, 4}).tril().to(at::kBool));
    listed = register_buffer("listed", torch::tensor({1.5F, -2.0F, 4.0F}));
    order = register_buffer("order", at::randperm(16));
    count = at::ones({3, 4}).sum().item<double>();
    torch::manual_seed(77);
    seeded = register_parameter("seeded", torch::rand({9}));
    torch::manual_seed(77);
    seeded_again = register_parameter("seeded_again", torch::rand({9}));
    rows = register_parameter("rows", torch::randn({4, 3}));
    rows[2].fill_(7);
    joined = register_parameter("joined", at::cat({at::rand({2, 3}), at::rand({1, 3}) - 0.5}));
  }
  torch::nn::Linear again{7, 3};
  at::Tensor scaled = register_parameter("scaled", torch::randn({5, 6}) * 0.02);
  at::Tensor tied = register_parameter("tied", again->weight);
  at::Tensor orthogonal, table, mask, listed, order, seeded, seeded_again, rows, joined;
  double count = 0;
};
TORCH_MODULE(Handmade);

void expect_equal_states(const torch::nn::Module& found, const torch::nn::Module& expected) {
  const auto compare = [](const auto& actual, const auto& wanted) {
    ASSERT_EQ(actual.keys(), wanted.keys());
    for (const auto& item : wanted) {
      const at::Tensor& value = *actual.find(item.key());
      EXPECT_EQ(value.defined(), item.value().defined()) << item.key();
      if (item.value().defined()) {
        EXPECT_EQ(value.scalar_type(), item.value().scalar_type()) << item.key();
        EXPECT_TRUE(at::equal(value, item.value())) << item.key();
      }
    }
  };
  compare(found.named_parameters(), expected.named_parameters());
  compare(found.named_buffers(), expected.named_buffers());
}

template <class Holder>
void expect_as_made_at_once() {
  torch::manual_seed(5);
  const Holder expected;
  torch::manual_seed(5);
  const Holder found = deferred_init([] { return Holder(); });
  torch::rand({3});  // other draws do not matter
  EXPECT_TRUE(is_deferred(*found));
  materialize_module(found);
  EXPECT_FALSE(is_deferred(*found));
  expect_equal_states(*found, *expected);
  for (const auto& param : found->named_parameters()) {
    EXPECT_EQ(param.value().requires_grad(),
              expected->named_parameters()[param.key()].requires_grad());
  }
}

TEST(DeferredInitTest, LayersOfLibTorchGetTheBitsThatTheirConstructorsGive) {
  expect_as_made_at_once<Stock>();
}

TEST(DeferredInitTest, SoDoModulesThatComputeTheirValues) {
  expect_as_made_at_once<Handmade>();
  torch::manual_seed(5);
  EXPECT_EQ(deferred_init([] { return Handmade(); })->count, 12);
}

// The generator of the threads is one, so the modules are made before.
TEST(DeferredInitTest, ShardedModelsHaveTheSameValuesOnAnyNumberOfRanks) {
  torch::manual_seed(6);
  const Stock expected;
  for (const int64_t size : {1, 3}) {
    std::vector<Stock> models;
    for (int64_t r = 0; r < size; ++r) {
      torch::manual_seed(6);
      models.push_back(deferred_init([] { return Stock(); }));
    }
    run_ranks(size, [&](Rank& rank) {
      Stock& model = models[static_cast<size_t>(rank.rank)];
      fully_shard(model->linear, {.mesh = rank.mesh});
      fully_shard(model->embedding, {.mesh = rank.mesh});
      const FSDPModule root = fully_shard(model, {.mesh = rank.mesh});
      materialize_module(model);
      summon_full_params(root, [&] { expect_equal_states(*model, *expected); });
    });
  }
}

TEST(DeferredInitTest, GeneratorsStayWhereTheyWere) {
  torch::manual_seed(8);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(8);
  const Stock model = deferred_init([] { return Stock(); });
  EXPECT_TRUE(at::equal(torch::rand({4}), expected));
  materialize_module(model);
  const at::Tensor goes_on = torch::rand({4});
  torch::manual_seed(8);
  torch::rand({4});
  EXPECT_TRUE(at::equal(torch::rand({4}), goes_on));
}

TEST(DeferredInitTest, WhatHasBeenCastOrReplacedGetsItsValuesAllTheSame) {
  torch::manual_seed(9);
  const torch::nn::Linear expected(5, 4);
  torch::manual_seed(9);
  torch::nn::Linear model = deferred_init([] { return torch::nn::Linear(5, 4); });
  model->to(at::kDouble);
  materialize_module(model);
  EXPECT_EQ(model->weight.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(model->weight, expected->weight.to(at::kDouble)));
}

TEST(DeferredInitTest, AfterAFailureTheNextCallGoesOn) {
  torch::manual_seed(11);
  const Stock expected;
  torch::manual_seed(11);
  const Stock model = deferred_init([] { return Stock(); });
  const auto of_shape = [&](at::IntArrayRef shape) {
    model->linear->weight.set_data(at::zeros(shape));
  };
  of_shape({2, 2});
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::string said = refusal([&] { materialize_module(model); });
    EXPECT_NE(said.find("size"), std::string::npos) << said;
    EXPECT_TRUE(is_deferred(*model));
  }
  of_shape({5, 8});
  materialize_module(model);
  EXPECT_FALSE(is_deferred(*model));
  expect_equal_states(*model, *expected);
}

TEST(DeferredInitTest, WithinSummonFullParamsItIsRefusedAndWaits) {
  torch::manual_seed(12);
  const torch::nn::Linear expected(5, 4);
  torch::manual_seed(12);
  const torch::nn::Linear model = deferred_init([] { return torch::nn::Linear(5, 4); });
  run_ranks(1, [&](Rank& rank) {
    const FSDPModule root = fully_shard(model, {.mesh = rank.mesh});
    summon_full_params(root, [&] {
      const std::string said = refusal([&] { materialize_module(model); });
      EXPECT_NE(said.find("summon_full_params"), std::string::npos) << said;
    });
    EXPECT_TRUE(is_deferred(*model));
    materialize_module(model);
    EXPECT_TRUE(at::equal(root.full_parameter("weight"), expected->weight));
  });
}

TEST(DeferredInitTest, WhatNeedsRandomValuesAtOnceIsRefusedByName) {
  torch::manual_seed(1);
  const at::Tensor next = torch::rand({2});
  torch::manual_seed(1);
  const std::string said = refusal([] {
    deferred_init([] {
      torch::nn::Linear linear(3, 2);
      if (linear->weight.sum().item<float>() > 0) {
        linear->reset();
      }
      return linear;
    });
  });
  EXPECT_NE(said.find("aten::_local_scalar_dense"), std::string::npos) << said;
  EXPECT_NE(said.find("materialize_module"), std::string::npos) << said;
  EXPECT_TRUE(at::equal(torch::rand({2}), next));  // and everything is as usual again
}

TEST(DeferredInitTest, MisuseIsRefused) {
  refusal(
      [] { deferred_init([] { return deferred_init([] { return torch::nn::Linear(2, 2); }); }); });
  EXPECT_THROW(deferred_init([]() -> torch::nn::Linear { throw std::runtime_error("told to"); }),
               std::runtime_error);
  refusal([] { materialize_module(torch::nn::Linear(2, 2)); });
  refusal([] { materialize_module(std::shared_ptr<torch::nn::Module>()); });
  refusal([] { deferred_init([] { return std::shared_ptr<torch::nn::Module>(); }); });
  torch::nn::Linear twice = deferred_init([] { return torch::nn::Linear(2, 2); });
  materialize_module(twice);
  refusal([&] { materialize_module(twice); });
  EXPECT_EQ(torch::rand({2}).numel(), 2);
}

}  // namespace
}  // namespace fsdp::testing
