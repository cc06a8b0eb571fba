// In which dtypes units compute: each by its own policy.

#include <fsdp/wrap.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/line_chain.h"

namespace fsdp::testing {
namespace {

using Dtype = std::optional<at::ScalarType>;

/// A chain whose lines have policies of their own; the root has none.
ShardedChain shard_lines(const Rank& rank, const std::vector<MixedPrecisionPolicy>& policies) {
  ShardedChain setup;
  for (size_t i = 0; i < policies.size(); ++i) {
    fully_shard(setup.model->lines[i].ptr(), {.mesh = rank.mesh, .mp_policy = policies[i]});
  }
  setup.root = fully_shard(setup.model.ptr(), {.mesh = rank.mesh});
  return setup;
}

/// The chain without sharding, each line in a dtype, and its results in another.
at::Tensor plain_result(const std::vector<std::vector<at::Tensor>>& weights,
                        const std::vector<Dtype>& computes, const std::vector<Dtype>& outputs,
                        at::Tensor y) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::ScalarType compute = computes[i].value_or(at::kFloat);
    const at::Tensor input = computes[i] ? y.to(compute) : y;
    y = at::tanh(at::linear(input, weights[i][0].to(compute), weights[i][1].to(compute)));
    y = outputs[i] ? y.to(*outputs[i]) : y;
  }
  return y;
}

std::vector<std::vector<at::Tensor>> plain_weights() {
  std::vector<std::vector<at::Tensor>> weights;
  for (int64_t i = 0; i < 3; ++i) {
    ChainLine line(i);
    weights.push_back({line.weight.detach().requires_grad_(), line.bias.detach().requires_grad_()});
  }
  return weights;
}

TEST(MixedPrecisionTest, OfOneUnitLeavesTheOthersInFloat32) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_ranks(2, [dtype](Rank& rank) {
      const ShardedChain setup =
          shard_lines(rank, {{}, {.param_dtype = dtype, .output_dtype = at::kFloat}, {}});
      const at::Tensor result = chain_loss(setup.model, rank.rank);
      EXPECT_EQ(setup.model->lines[0]->seen, at::kFloat);
      EXPECT_EQ(setup.model->lines[1]->seen, dtype);
      EXPECT_EQ(setup.model->lines[2]->seen, at::kFloat);
      result.backward();
      const std::vector<Dtype> computes = {std::nullopt, dtype, std::nullopt};
      const std::vector<Dtype> outputs = {std::nullopt, at::kFloat, std::nullopt};
      Gradients expected;
      for (int64_t r = 0; r < 2; ++r) {
        const auto weights = plain_weights();
        const at::Tensor loss =
            plain_result(weights, computes, outputs, chain_input(r)).square().mean();
        loss.backward();
        if (r == rank.rank) {
          EXPECT_EQ(loss.item<float>(), result.item<float>());
        }
        for (size_t i = 0; i < 3; ++i) {
          for (const auto& [name, index] : {std::pair{"weight", 0}, std::pair{"bias", 1}}) {
            at::Tensor& sum = expected["line" + std::to_string(i) + "." + name];
            const at::Tensor part = weights[i][static_cast<size_t>(index)].grad() / 2;
            sum = sum.defined() ? sum + part : part;
          }
        }
      }
      // Of line 1 the mean is rounded to its dtype.
      expect_gradients(rank, setup.root, expected, dtype == at::kHalf ? 1e-4 : 1e-3);
      for (const LocalShard& gradient : setup.root.sharded_gradients()) {
        EXPECT_EQ(gradient.local.scalar_type(), at::kFloat) << gradient.fqn;
      }
    });
  }
}

// As norms are kept in float32 inside of what computes in bfloat16.
TEST(MixedPrecisionTest, OfANestedUnitIsItsOwn) {
  run_ranks(2, [](Rank& rank) {
    const MixedPrecisionPolicy narrow{.param_dtype = at::kBFloat16};
    const MixedPrecisionPolicy wide{.param_dtype = at::kFloat, .output_dtype = at::kBFloat16};
    const ShardedChain setup = shard_lines(rank, {narrow, wide, narrow});
    const at::Tensor y = setup.model(chain_input(rank.rank));
    EXPECT_EQ(setup.model->lines[0]->seen, at::kBFloat16);
    EXPECT_EQ(setup.model->lines[1]->seen, at::kFloat);
    EXPECT_EQ(setup.model->lines[2]->seen, at::kBFloat16);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    const std::vector<Dtype> computes = {at::kBFloat16, at::kFloat, at::kBFloat16};
    const std::vector<Dtype> outputs = {std::nullopt, at::kBFloat16, std::nullopt};
    EXPECT_TRUE(
        at::equal(y, plain_result(plain_weights(), computes, outputs, chain_input(rank.rank))));
  });
}

TEST(MixedPrecisionTest, RecomputesInTheSameDtypes) {
  run_ranks(2, [](Rank& rank) {
    const auto gradients = [&](bool checkpoints) {
      const MixedPrecisionPolicy policy{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
      const ShardedChain setup = shard_lines(rank, {policy, policy, policy});
      setup.model->checkpoints = checkpoints;
      setup.model(chain_input(rank.rank).requires_grad_()).to(at::kFloat).square().sum().backward();
      for (const Unit<ChainLine>& line : setup.model->lines) {
        EXPECT_EQ(line->seen, at::kBFloat16);
      }
      return setup.root.sharded_gradients();
    };
    const std::vector<LocalShard> kept = gradients(false);
    const std::vector<LocalShard> recomputed = gradients(true);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_TRUE(at::equal(kept[i].local, recomputed[i].local)) << kept[i].fqn;
    }
  });
}

struct Carried {
  at::Tensor values;
  std::map<std::string, at::Tensor> by_name;
  std::vector<at::Tensor> list;
};

struct Carrier : torch::nn::Module {
  Carried forward(Carried input, const at::Tensor& mask, const at::Tensor& extra) {
    seen = {input.values.scalar_type(), input.by_name.at("a").scalar_type(),
            input.list.at(0).scalar_type(), mask.scalar_type(), extra.scalar_type()};
    input.values = at::linear(input.values + extra, weight) * mask;
    input.by_name["b"] = input.values.sum();
    input.list.push_back(mask);
    return input;
  }
  at::Tensor weight = register_parameter("weight", at::eye(5));
  std::vector<at::ScalarType> seen;
};

// Also what comes from elsewhere than the unit before; integers stay.
TEST(MixedPrecisionTest, CastsWhatIsInsideOfArgumentsAndResults) {
  for (const bool casts : {true, false}) {
    run_ranks(2, [casts](Rank& rank) {
      Unit<Carrier> model(std::make_shared<Carrier>());
      fully_shard(model.ptr(), {.mesh = rank.mesh,
                                .mp_policy = {.param_dtype = at::kBFloat16,
                                              .output_dtype = at::kDouble,
                                              .cast_forward_inputs = casts}});
      const at::ScalarType given = casts ? at::kFloat : at::kBFloat16;
      const at::Tensor x = at::ones({2, 5}, given);
      const at::Tensor mask = at::ones({2, 5}, at::kLong);
      const at::Tensor outside = casts ? at::ones({2, 5}, at::kDouble) : x;
      const Carried result = model(Carried{x, {{"a", x}}, {outside}}, mask, outside);
      const std::vector<at::ScalarType> expected = {at::kBFloat16, at::kBFloat16, at::kBFloat16,
                                                    at::kLong, at::kBFloat16};
      EXPECT_EQ(model->seen, expected);
      EXPECT_EQ(result.values.scalar_type(), at::kDouble);
      EXPECT_EQ(result.by_name.at("a").scalar_type(), at::kDouble);
      EXPECT_EQ(result.by_name.at("b").scalar_type(), at::kDouble);
      EXPECT_EQ(result.list.at(0).scalar_type(), at::kDouble);
      EXPECT_EQ(result.list.at(1).scalar_type(), at::kLong);
      EXPECT_EQ(x.scalar_type(), given) << "the caller's tensor is not touched";
      result.values.sum().backward();
      EXPECT_TRUE(fsdp_module(*model).sharded_gradients()[0].local.defined());
    });
  }
}

// The first forward records nothing that depends on what is frozen.
TEST(MixedPrecisionTest, ReducesWhatWasFrozenInTheFirstForward) {
  run_ranks(2, [](Rank& rank) {
    const MixedPrecisionPolicy policy{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
    const auto gradients = [&](bool freezes_first) {
      const ShardedChain setup = shard_lines(rank, {policy, policy, policy});
      setup.model->lines[1]->freeze(freezes_first);
      if (freezes_first) {
        chain_loss(setup.model, rank.rank, 1).backward();
        EXPECT_FALSE(fsdp_module(*setup.model->lines[1]).sharded_gradients()[0].local.defined());
        AdamW(setup.root, {}).zero_grad();
        setup.model->lines[1]->freeze(false);
      }
      chain_loss(setup.model, rank.rank).backward();
      return setup.root.sharded_gradients();
    };
    const std::vector<LocalShard> expected = gradients(false);
    const std::vector<LocalShard> actual = gradients(true);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(actual[i].local.defined()) << actual[i].fqn;
      EXPECT_TRUE(at::equal(actual[i].local, expected[i].local)) << actual[i].fqn;
    }
  });
}

struct Normed : torch::nn::Module {
  Normed() { register_module("norm", norm); }
  at::Tensor forward(const at::Tensor& x) {
    seen = {weight.scalar_type(), norm->weight.scalar_type(), norm->running_mean.scalar_type()};
    return norm(at::linear(x, weight));
  }
  at::Tensor weight = register_parameter("weight", at::eye(5) * 0.5);
  torch::nn::BatchNorm1d norm{5};
  std::vector<at::ScalarType> seen;
};

// As FSDP1 leaves batch norms out of mixed precision: no unit of its own, and no cast.
TEST(MixedPrecisionTest, LeavesOutModulesThatKeepTheirDtype) {
  run_ranks(2, [](Rank& rank) {
    Unit<Normed> model(std::make_shared<Normed>());
    const FSDPModule root = fully_shard(
        model.ptr(), {.mesh = rank.mesh,
                      .mp_policy = {.param_dtype = at::kBFloat16,
                                    .reduce_dtype = at::kBFloat16,
                                    .keeps_dtype = module_types<torch::nn::BatchNorm1d>()}});
    const at::Tensor y = model(chain_input(rank.rank));
    const std::vector<at::ScalarType> expected = {at::kBFloat16, at::kFloat, at::kFloat};
    EXPECT_EQ(model->seen, expected);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).square().sum().backward();

    at::Tensor mean_gradient;  // of the norm's weight, which is reduced in float32
    for (int64_t r = 0; r < 2; ++r) {
      Unit<Normed> plain(std::make_shared<Normed>());
      const at::Tensor weight = plain->weight.detach().to(at::kBFloat16);
      plain->norm(at::linear(chain_input(r).to(at::kBFloat16), weight))
          .to(at::kFloat)
          .square()
          .sum()
          .backward();
      const at::Tensor half = plain->norm->weight.grad() / 2;
      mean_gradient = mean_gradient.defined() ? mean_gradient + half : half;
    }
    for (const LocalShard& gradient : root.sharded_gradients()) {
      EXPECT_TRUE(gradient.local.defined()) << gradient.fqn;
      if (gradient.fqn == "norm.weight") {
        expect_piece(gradient, mean_gradient, 0);
      }
    }
    EXPECT_EQ(count(rank, "all_gather"), 2) << "by themselves";
  });
}

}  // namespace
}  // namespace fsdp::testing
