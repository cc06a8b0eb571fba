#include <gtest/gtest.h>

#include <cmath>

#include "fsdp_runtime/src/engine/gradient_reducer.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(GradientScalingTest, DivideFactorSetBetweenMicrobatchesHoldsFromTheNextSumOn) {
  for (int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      PlainTraining plain({}, rank.size, {});
      Gradients expected = plain.gradients(
          [&](int64_t r) { return loss(plain.model, 0, r) + loss(plain.model, 1, r); });
      setup.root.set_requires_gradient_sync(false);
      loss(setup.model, 0, rank.rank).backward();
      for (FSDPModule unit : setup.root.units()) {
        unit.set_gradient_divide_factor(4);
      }
      setup.root.set_requires_gradient_sync(true);
      loss(setup.model, 1, rank.rank).backward();
      expect_gradients(rank, setup.root, expected, 1e-7);
    });
  }
}

TEST(GradientScalingTest, ClippingWithANanNormMakesAllGradientsNan) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    loss(setup.model, 0, rank.rank).backward();
    setup.root.sharded_gradients()[0].local.fill_(NAN);
    EXPECT_TRUE(std::isnan(clip_grad_norm_(setup.root, 1.0).item<float>()));
    for (const LocalShard& slice : setup.root.sharded_gradients()) {
      if (slice.local.defined()) {
        EXPECT_TRUE(at::isnan(slice.local).all().item<bool>()) << slice.fqn;
      }
    }
  });
}

TEST(GradientScalingTest, ClippingTakesGradientsOfSeveralDtypes) {
  struct Mixed : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      return at::linear(at::linear(x, narrow).to(at::kDouble), wide);
    }
    at::Tensor narrow = register_parameter("narrow", at::eye(6) * 0.5);
    at::Tensor wide = register_parameter("wide", at::eye(6, at::kDouble) * 0.25);
  };
  run_ranks(2, [](Rank& rank) {
    const at::Tensor x = at::arange(12, at::kFloat).view({2, 6});
    Unit<Mixed> plain(std::make_shared<Mixed>());
    plain(x).square().sum().backward();
    const double norm =
        at::cat({plain->narrow.grad().to(at::kDouble).flatten(), plain->wide.grad().flatten()})
            .norm()
            .item<double>();
    Unit<Mixed> model(std::make_shared<Mixed>());
    const FSDPModule root = fully_shard(
        model.ptr(), {.mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}});
    model(x).square().sum().backward();
    EXPECT_NEAR(clip_grad_norm_(root, norm / 4).item<double>(), norm, norm * 1e-6);
    EXPECT_NEAR(clip_grad_norm_(root, 0).item<double>(), norm / 4, norm * 1e-6);
  });
}

TEST(GradientScalingTest, ClippingMeasuresTheWholeModelAndScales) {
  for (int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      PlainTraining plain({}, rank.size, {});
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      double square_sum = 0;
      for (const auto& [fqn, gradient] : expected) {
        square_sum += gradient.to(at::kDouble).square().sum().item<double>();
      }
      loss(setup.model, 0, rank.rank).backward();
      rank.comm->clear();
      EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), std::sqrt(square_sum), 1e-6);
      EXPECT_EQ(rank.comm->records().size(), 1u);
      clip_grad_norm_(setup.root, 0.01);
      EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), 0.01, 1e-6);
    });
  }
}

TEST(GradientScalingTest, ClippingCoversGradientsOfAllDtypes) {
  run_ranks(2, [](Rank& rank) {
    struct Mixed : torch::nn::Module {
      Mixed() {
        single = register_parameter("single", at::full({6}, 2.0));
        half = register_parameter("half", at::full({10}, 3.0, at::kBFloat16));
      }
      at::Tensor forward(at::Tensor x) { return single.sum() * x + 2 * half.to(at::kFloat).sum(); }
      at::Tensor single, half;
    };
    const Unit<Mixed> model(std::make_shared<Mixed>());
    const FSDPModule root = fully_shard(model.ptr(), {rank.mesh, {}, {}});
    model(at::full({}, 5.0).requires_grad_()).backward();
    const double norm = std::sqrt(6 * 25 + 10 * 4);
    EXPECT_NEAR(clip_grad_norm_(root, norm / 4).item<double>(), norm, 1e-5);
    for (const LocalShard& shard : root.sharded_gradients()) {
      const double expected = (shard.fqn == "single" ? 5 : 2) * 0.25;
      EXPECT_TRUE(at::allclose(shard.local.to(at::kDouble),
                               at::full_like(shard.local, expected, at::kDouble), 1e-2, 0))
          << shard.fqn << ": " << shard.local;
    }
  });
}

TEST(GradientScalingTest, ClippingIsTheSameOnAllRanksThoughUnitsAreOnFewerRanks) {
  run_ranks(2, [](Rank& rank) {
    // Each rank has the whole blocks for itself; only the root's parameters are divided.
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    const auto alone = init_device_mesh(c10::kCPU, {1}, {"alone"}, make_local_world(1).front());
    for (const Unit<ToyBlock>& block : model->blocks) {
      fully_shard(block.ptr(),
                  {.mesh = alone, .reshard_after_forward = std::nullopt, .mp_policy = {}});
    }
    FSDPModule root = fully_shard(
        model.ptr(), {.mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}});
    root.init_parameters(initialise);
    loss(model, 0, rank.rank).backward();
    at::Tensor shared = at::zeros({1}, at::kDouble);
    at::Tensor own = at::zeros({1}, at::kDouble);
    for (const LocalShard& slice : root.sharded_gradients()) {
      if (slice.local.defined()) {
        (slice.fqn.starts_with("block") ? own : shared) +=
            slice.local.to(at::kDouble).square().sum();
      }
    }
    at::Tensor all = shared + own;
    rank.comm->all_reduce(all, ReduceOp::kSum, Lane::kReduce)->wait();
    const at::Tensor norm = clip_grad_norm_(root, 0);
    EXPECT_NEAR(norm.item<double>(), all.sqrt().item<double>(), 1e-6);
    at::Tensor largest = norm.reshape({1}).clone();
    rank.comm->all_reduce(largest, ReduceOp::kMax, Lane::kReduce)->wait();
    EXPECT_EQ(norm.item<float>(), largest.item<float>()) << "not equal on all ranks";
  });
}

// The divisors that torch.distributed.fsdp's _get_gradient_divide_factors returns.
TEST(GradientScalingTest, Float16IsDividedBeforeAndAfterTheSumLikeFsdp2) {
  const auto divisors = [](std::optional<double> factor, int64_t ranks) {
    const GradientDivision division = divide_gradients(factor, ranks, at::kHalf);
    EXPECT_EQ(division.op, ReduceOp::kSum);
    return std::make_pair(division.before, division.after);
  };
  EXPECT_EQ(divisors(std::nullopt, 1), std::make_pair(1.0, 1.0));
  EXPECT_EQ(divisors(std::nullopt, 2), std::make_pair(2.0, 1.0));
  EXPECT_EQ(divisors(std::nullopt, 3), std::make_pair(2.0, 1.5));
  EXPECT_EQ(divisors(std::nullopt, 8), std::make_pair(4.0, 2.0));
  EXPECT_EQ(divisors(std::nullopt, 256), std::make_pair(16.0, 16.0));
  EXPECT_EQ(divisors(6, 2), std::make_pair(4.0, 1.5));
  EXPECT_EQ(divisors(7.5, 2), std::make_pair(1.0, 7.5));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    EXPECT_EQ(divide_gradients(std::nullopt, 4, dtype).op, ReduceOp::kAvg);
    EXPECT_EQ(divide_gradients(4, 4, dtype).op, ReduceOp::kAvg);
    EXPECT_EQ(divide_gradients(2, 4, dtype).op, ReduceOp::kSum);
    EXPECT_EQ(divide_gradients(2, 4, dtype).before, 1);
    EXPECT_EQ(divide_gradients(2, 4, dtype).after, 2);
  }
}

// The sum of both ranks' gradients is larger than any float16; what it is divided to is not.
TEST(GradientScalingTest, Float16SumsThatWouldOverflowAreDividedFirst) {
  struct Line : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x * weight; }
    at::Tensor weight = register_parameter("weight", at::ones({256}));
  };
  run_ranks(2, [](Rank& rank) {
    Unit<Line> line(std::make_shared<Line>());
    FullyShardOptions options;
    options.mesh = rank.mesh;
    options.mp_policy.reduce_dtype = at::kHalf;
    FSDPModule root = fully_shard(line.ptr(), options);
    root.set_gradient_divide_factor(4);
    for (int microbatch = 1; microbatch <= 2; ++microbatch) {
      line(at::full({256}, 40000.0)).sum().backward();
      const at::Tensor gradient = root.sharded_gradients()[0].local;
      EXPECT_TRUE(at::equal(gradient, at::full_like(gradient, microbatch * 20000.0)));
    }
  });
}

TEST(GradientScalingTest, GradientDivideFactorReplacesTheAverage) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (FSDPModule unit : setup.root.units()) {
      unit.set_gradient_divide_factor(4);
    }
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    for (auto& [fqn, gradient] : expected) {
      gradient = gradient / 2;
    }
    loss(setup.model, 0, rank.rank).backward();
    expect_gradients(rank, setup.root, expected);
  });
}

}  // namespace
}  // namespace fsdp::testing
