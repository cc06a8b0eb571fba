// Scaled losses: gradients that overflow on one rank stop the step on all.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/spoiled.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

/// Copies of this rank's parts, by name, "" for what they are of.
using Parts = std::map<std::string, at::Tensor>;

void copy_to(Parts& parts, const std::string& what, const std::vector<LocalShard>& shards) {
  for (const LocalShard& shard : shards) {
    if (shard.local.defined()) {
      parts[what + " " + shard.fqn] = shard.local.clone();
    }
  }
}

Parts all_of(const FSDPModule& root, const AdamW& optimizer) {
  Parts parts;
  copy_to(parts, "parameter", root.sharded_parameters());
  copy_to(parts, "gradient", root.sharded_gradients());
  copy_to(parts, "exp_avg", optimizer.exp_avg());
  copy_to(parts, "exp_avg_sq", optimizer.exp_avg_sq());
  return parts;
}

/// NaN is equal to NaN.
void expect_same(const Parts& actual, const Parts& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::allclose(actual.at(name), tensor, 0, 0, /*equal_nan=*/true)) << name;
  }
}

class FoundInfTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(FoundInfTest, IsWhatSomeRankHasAndChangesNoGradient) {
  for (const float value : {kInf, -kInf, std::nanf("")}) {
    run_ranks(GetParam(), [value](Rank& rank) {
      Sharded setup = make(rank);
      AdamW optimizer(setup.root, {});
      EXPECT_EQ(found_inf(setup.root).item<float>(), 0) << "without gradients";
      loss(setup.model, 0, rank.rank).backward();
      EXPECT_EQ(found_inf(setup.root).item<float>(), 0);
      if (rank.rank == rank.size - 1) {
        spoil(setup.root, value);
      }
      const Parts before = all_of(setup.root, optimizer);
      const at::Tensor found = found_inf(setup.root);
      EXPECT_EQ(found.item<float>(), 1);
      EXPECT_EQ(found.dim(), 0);
      expect_same(all_of(setup.root, optimizer), before);
      optimizer.zero_grad();
      loss(setup.model, 0, rank.rank).backward();
      EXPECT_EQ(found_inf(setup.root).item<float>(), 0) << "it was dropped";
    });
  }
}

TEST_P(FoundInfTest, StopsTheStepOnAllRanksWithCountsAndGradients) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    optimizer.step();
    const std::vector<int64_t> steps = optimizer.parameter_steps();
    if (rank.rank == 0) {
      spoil(setup.root, kInf);
    }
    const Parts before = all_of(setup.root, optimizer);
    optimizer.step({.grad_scale = tensor_of(4), .found_inf = found_inf(setup.root)});
    expect_same(all_of(setup.root, optimizer), before);
    EXPECT_EQ(optimizer.parameter_steps(), steps);
    EXPECT_EQ(optimizer.step_count(), 1);
  });
}

TEST_P(FoundInfTest, UnscalingDividesAndLooksAtWhatWasThereBefore) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    (loss(setup.model, 0, rank.rank) * 64).backward();
    EXPECT_EQ(unscale_gradients_(setup.root, tensor_of(1.0 / 64)).item<float>(), 0);
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
    if (rank.rank == rank.size - 1) {
      spoil(setup.root, kInf);
    }
    EXPECT_EQ(unscale_gradients_(setup.root, tensor_of(0)).item<float>(), 1);
  });
}

struct Scaler {
  at::Tensor scale = tensor_of(1024);
  at::Tensor growth = at::zeros({}, at::kInt);
  void update(const at::Tensor& found) {
    at::_amp_update_scale_(scale, growth, found, /*scale_growth_factor=*/2,
                           /*scale_backoff_factor=*/0.5, /*growth_interval=*/2);
  }
};

// As torch.amp.GradScaler does with a fused optimizer, and with unscale_() before the step.
TEST_P(FoundInfTest, AScaledTrainingIsOneWithoutScaleThatLeavesOutWhatOverflows) {
  for (const bool unscales_first : {false, true}) {
    run_ranks(GetParam(), [unscales_first](Rank& rank) {
      Sharded setup = make(rank);
      AdamW optimizer(setup.root, {});
      PlainTraining plain({}, rank.size, {});
      Scaler scaler;
      for (int64_t step = 0; step < 5; ++step) {
        const bool overflows = step == 1;
        (loss(setup.model, step, rank.rank) * scaler.scale).backward();
        if (overflows && rank.rank == rank.size - 1) {
          spoil(setup.root, std::nanf(""));
        }
        if (unscales_first) {
          const at::Tensor found = unscale_gradients_(setup.root, 1 / scaler.scale);
          optimizer.step({.found_inf = found});
          scaler.update(found);
        } else {
          const at::Tensor found = found_inf(setup.root);
          optimizer.step({.grad_scale = scaler.scale, .found_inf = found});
          scaler.update(found);
        }
        optimizer.zero_grad();
        if (!overflows) {
          plain.update(plain.gradients([&](int64_t r) { return loss(plain.model, step, r); }));
        }
      }
      EXPECT_EQ(scaler.scale.item<float>(), 1024);  // halved, and doubled after two more steps
      EXPECT_EQ(optimizer.step_count(), 4);
      for (const LocalShard& shard : setup.root.sharded_parameters()) {
        EXPECT_TRUE(at::equal(shard.local, part_of(plain.parameter(shard.fqn), shard)))
            << shard.fqn;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, FoundInfTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "ranks"; });

TEST(FoundInfOverRowsTest, IsToldToAllRows) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(found_inf(setup.root).item<float>(), 0);
    if (rank.rank == 2) {
      spoil(setup.root, kInf);
    }
    EXPECT_EQ(found_inf(setup.root).item<float>(), 1);
  });
}

// A block on the rows of two, the rest on all four ranks.
TEST(FoundInfOverRowsTest, OfAUnitOnFewerRanksIsToldToAll) {
  run_ranks(4, [](Rank& rank) {
    const auto mesh = mesh_of(rank.comm, 2);
    const auto row = std::make_shared<DeviceMesh>(
        c10::kCPU, std::vector<int64_t>{2}, std::vector<std::string>{"row"},
        std::vector<std::shared_ptr<Collectives>>{mesh->group(1)});
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    fully_shard(model->blocks[0].ptr(), {row, {}, {}});
    FSDPModule root = fully_shard(model.ptr(), {rank.mesh, {}, {}});
    root.init_parameters(initialise);
    loss(model, 0, rank.rank).backward();
    EXPECT_EQ(found_inf(root).item<float>(), 0);
    if (rank.rank == 3) {
      spoil(fsdp_module(*model->blocks[0]), kInf);
    }
    EXPECT_EQ(found_inf(root).item<float>(), 1);
  });
}

// What the rows share is on all ranks, though its row is no larger than that of the root's own.
TEST(FoundInfOverRowsTest, OfAUnitOfOneRowIsToldToAllThatShareAnother) {
  run_ranks(4, [](Rank& rank) {
    const auto mesh = mesh_of(rank.comm, 2);
    const auto row = std::make_shared<DeviceMesh>(
        c10::kCPU, std::vector<int64_t>{2}, std::vector<std::string>{"row"},
        std::vector<std::shared_ptr<Collectives>>{mesh->group(1)});
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    fully_shard(model->blocks[0].ptr(), {mesh, {}, {}});
    FSDPModule root = fully_shard(model.ptr(), {row, {}, {}});
    root.init_parameters(initialise);
    loss(model, 0, rank.rank).backward();
    EXPECT_EQ(found_inf(root).item<float>(), 0);
    if (rank.rank == 3) {
      spoil(root, kInf);
    }
    EXPECT_EQ(found_inf(root).item<float>(), 1);
  });
}

TEST(DroppedGradientTest, LeavesNothingBehindWhereTheUnitsOtherParametersKeepTheirs) {
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      AdamW part(setup.root, {{.params = {"block0.up"}}}, {});
      PlainTraining plain({}, rank.size, {});
      loss(setup.model, 0, rank.rank).backward();
      for (const LocalShard& gradient : setup.root.sharded_gradients()) {
        if (gradient.fqn == "block0.up") {
          gradient.local.fill_(std::nanf(""));
        }
      }
      part.zero_grad();
      EXPECT_EQ(found_inf(setup.root).item<float>(), 0);
      loss(setup.model, 1, rank.rank).backward();
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); });
      for (const auto& [fqn, gradient] :
           plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); })) {
        expected[fqn] = fqn == "block0.up" ? expected[fqn] : expected[fqn] + gradient;
      }
      expect_gradients(rank, setup.root, expected, 1e-7);
    });
  }
}

TEST(DroppedGradientTest, CountsNeitherForTheNormNorAsOverflow) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    loss(setup.model, 0, rank.rank).backward();
    double square_sum = 0;
    for (const LocalShard& gradient : setup.root.sharded_gradients()) {
      if (gradient.local.defined() && gradient.fqn != "block0.up") {
        square_sum += gradient.local.to(at::kDouble).square().sum().item<double>();
      }
    }
    at::Tensor total = at::full({1}, square_sum, at::kDouble);
    rank.comm->all_reduce(total, ReduceOp::kSum, Lane::kReduce)->wait();
    for (const auto& [fqn, leaf] : setup.root.named_parameters()) {
      if (fqn == "block0.up") {
        leaf.grad().fill_(kInf);
        leaf.mutable_grad().reset();
      }
    }
    EXPECT_EQ(found_inf(setup.root).item<float>(), 0);
    EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), std::sqrt(total.item<double>()),
                1e-6);
  });
}

TEST(GradScalingTest, MistakesAreNamed) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_THAT(refusal([&] { optimizer.step({.found_inf = at::zeros({}, at::kDouble)}); }),
                HasSubstr("found_inf is a tensor of [], Double on cpu; expected one element"));
    EXPECT_THAT(refusal([&] { optimizer.step({.grad_scale = at::ones({2})}); }),
                HasSubstr("grad_scale is a tensor of [2]"));
    EXPECT_EQ(optimizer.step_count(), 0);
    EXPECT_THAT(refusal([&] { unscale_gradients_(setup.root, at::ones({}, at::kDouble)); }),
                HasSubstr("inv_scale is a tensor of [], Double"));
    EXPECT_THAT(refusal([&] { unscale_gradients_(setup.root, {}); }), HasSubstr("is undefined"));
    EXPECT_THAT(refusal([&] { found_inf(FSDPModule()); }), HasSubstr("empty FSDPModule"));
  });
}

}  // namespace
}  // namespace fsdp::testing
