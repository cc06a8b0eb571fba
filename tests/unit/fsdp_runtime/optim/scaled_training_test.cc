// Training with a GradScaler is training without one that leaves out what overflows.

#include <ATen/ATen.h>
#include <fsdp/grad_scaler.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <functional>
#include <memory>
#include <optional>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/spoiled.h"

namespace fsdp::testing {
namespace {

/// What torch.amp.GradScaler does to a scale, written out.
struct PlainScale {
  float scale = 1000;
  int64_t growth_tracker = 0;
  void update(bool overflows) {
    growth_tracker = overflows ? 0 : growth_tracker + 1;
    if (overflows) {
      scale *= 0.25F;
    } else if (growth_tracker == 2) {
      scale *= 3;
      growth_tracker = 0;
    }
  }
};

GradScaler scaler_like_plain(std::shared_ptr<Collectives> group = nullptr) {
  return GradScaler({.init_scale = 1000,
                     .growth_factor = 3,
                     .backoff_factor = 0.25,
                     .growth_interval = 2,
                     .enabled = true,
                     .process_group = std::move(group)});
}

constexpr int64_t kScaledSteps = 6;
/// In these steps: infinite and not a number.
bool overflows_in(int64_t step) { return step == 2 || step == 3; }

/// Gradients of a scaled loss, times the inverse as it is rounded.
Gradients unscaled_gradients(PlainTraining& plain, int64_t step, float scale) {
  Gradients gradients =
      plain.gradients([&](int64_t r) { return loss(plain.model, step, r) * tensor_of(scale); });
  const auto inverse = static_cast<float>(1 / static_cast<double>(scale));
  for (auto& [fqn, gradient] : gradients) {
    gradient.mul_(inverse);
  }
  return gradients;
}

void expect_trained_alike(const FSDPModule& root, const PlainTraining& plain) {
  for (const LocalShard& shard : root.sharded_parameters()) {
    EXPECT_TRUE(at::equal(shard.local, part_of(plain.parameter(shard.fqn), shard))) << shard.fqn;
  }
}

enum class Unscales { kInStep, kBefore, kOfTheModule };

/// Trains both and compares. `update(gradients)`: the plain step.
void train_both(Rank& rank, Sharded& setup, PlainTraining& plain, const std::function<void()>& step,
                const std::function<void()>& unscale, GradScaler& scaler,
                const std::function<void(const Gradients&)>& update,
                const std::function<void()>& zero_grad) {
  PlainScale expected;
  for (int64_t i = 0; i < kScaledSteps; ++i) {
    scaler.scale(loss(setup.model, i, rank.rank)).backward();
    if (overflows_in(i) && rank.rank == rank.size - 1) {
      spoil(setup.root, i == 2 ? kInf : std::nanf(""));
    }
    unscale();
    step();
    scaler.update();
    zero_grad();
    const Gradients gradients = unscaled_gradients(plain, i, expected.scale);
    if (!overflows_in(i)) {
      update(gradients);
    }
    expected.update(overflows_in(i));
    EXPECT_EQ(scaler.get_scale(), expected.scale);
  }
  expect_trained_alike(setup.root, plain);
}

class ScaledTrainingTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(ScaledTrainingTest, OfAdamWIsOneWithoutScale) {
  for (const Unscales when : {Unscales::kInStep, Unscales::kBefore, Unscales::kOfTheModule}) {
    run_ranks(GetParam(), [when](Rank& rank) {
      Sharded setup = make(rank);
      AdamW optimizer(setup.root, {.lr = 1e-2});
      PlainTraining plain({}, rank.size, {.lr = 1e-2});
      GradScaler scaler = scaler_like_plain();
      const auto unscale = [&] {
        if (when == Unscales::kBefore) {
          scaler.unscale_(optimizer);
        } else if (when == Unscales::kOfTheModule) {
          scaler.unscale_(setup.root);
        }
      };
      train_both(
          rank, setup, plain, [&] { scaler.step(optimizer); }, unscale, scaler,
          [&](const Gradients& gradients) { plain.update(gradients); },
          [&] { optimizer.zero_grad(); });
      EXPECT_EQ(optimizer.step_count(), kScaledSteps - 2);
    });
  }
}

TEST_P(ScaledTrainingTest, OfTorchOptimIsOneWithoutScale) {
  for (const bool unscales_before : {false, true}) {
    run_ranks(GetParam(), [unscales_before](Rank& rank) {
      Sharded setup = make(rank);
      const auto momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
      torch::optim::SGD optimizer(setup.root.parameters(), momentum);
      PlainTraining plain({}, rank.size, {});
      std::vector<at::Tensor> parameters;
      for (const auto& [fqn, parameter] : plain.unique_parameters()) {
        parameters.push_back(parameter);
      }
      torch::optim::SGD plain_optimizer(parameters, momentum);
      GradScaler scaler = scaler_like_plain();
      train_both(
          rank, setup, plain, [&] { scaler.step(optimizer); },
          [&] {
            if (unscales_before) {
              scaler.unscale_(optimizer);
            }
          },
          scaler,
          [&](const Gradients& gradients) {
            for (const auto& [fqn, parameter] : plain.unique_parameters()) {
              parameter.mutable_grad() = gradients.contains(fqn) ? gradients.at(fqn) : at::Tensor();
            }
            plain_optimizer.step();
          },
          [&] { optimizer.zero_grad(); });
    });
  }
}

TEST_P(ScaledTrainingTest, OfAnUpdateOfOnesOwnIsOneWithoutScale) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    GradScaler scaler = scaler_like_plain();
    const auto descend = [&] {
      at::NoGradGuard no_grad;
      setup.root.prepare_to_write();
      const std::vector<LocalShard> gradients = setup.root.sharded_gradients();
      const std::vector<LocalShard> parameters = setup.root.sharded_parameters();
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (gradients[i].local.defined()) {
          at::Tensor parameter = parameters[i].local;
          parameter.sub_(gradients[i].local, 0.1);
        }
      }
    };
    train_both(
        rank, setup, plain, [&] { scaler.step(setup.root, descend); }, [] {}, scaler,
        [&](const Gradients& gradients) {
          at::NoGradGuard no_grad;
          for (const auto& [fqn, parameter] : plain.unique_parameters()) {
            if (gradients.contains(fqn)) {
              at::Tensor target = parameter;
              target.sub_(gradients.at(fqn), 0.1);
            }
          }
        },
        [&] { AdamW(setup.root, {}).zero_grad(); });
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ScaledTrainingTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "ranks"; });

/// `up` and `down` matrices, and the rest, each with an optimizer of its own.
struct TwoOptimizers {
  explicit TwoOptimizers(const FSDPModule& root) {
    std::vector<AdamWParamGroup> groups(2);
    for (const LocalShard& shard : root.sharded_parameters()) {
      groups[is_first(shard.fqn) ? 0 : 1].params.push_back(shard.fqn);
    }
    first.emplace(root, std::vector{groups[0]}, AdamWOptions{});
    second.emplace(root, std::vector{groups[1]}, AdamWOptions{});
  }
  static bool is_first(const std::string& fqn) {
    return fqn.ends_with("up") || fqn.ends_with("down");
  }
  std::optional<AdamW> first;
  std::optional<AdamW> second;
};

TEST(ScaledOptimizersTest, SkipByTheirOwnGradientsAndShareTheScale) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    TwoOptimizers optimizers(setup.root);
    GradScaler scaler({.init_scale = 8});
    scaler.scale(loss(setup.model, 0, rank.rank)).backward();
    if (rank.rank == 0) {
      spoil(setup.root, kInf, "up");
    }
    scaler.step(*optimizers.second);
    scaler.step(*optimizers.first);
    scaler.update();
    EXPECT_EQ(optimizers.first->step_count(), 0);
    EXPECT_EQ(optimizers.second->step_count(), 1);
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

TEST(ScaledOptimizersTest, StepWithWhatTheirModuleHasUnscaled) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, rank.size, {});
    TwoOptimizers optimizers(setup.root);
    GradScaler scaler({.init_scale = 8});
    scaler.scale(loss(setup.model, 0, rank.rank)).backward();
    rank.comm->clear();
    scaler.unscale_(setup.root);
    const Gradients whole = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    expect_gradients(rank, setup.root, whole);
    rank.comm->clear();
    scaler.step(*optimizers.first);
    scaler.step(*optimizers.second);
    scaler.update();
    EXPECT_TRUE(rank.comm->records().empty()) << "all is known already";
    plain.update(whole);
    expect_trained_alike(setup.root, plain);
  });
}

// One rank has overflowed in a unit of which the optimizer's ranks are only some.
TEST(ScaledOptimizersTest, OfFewerRanksSkipWhereOthersDo) {
  run_ranks(4, [](Rank& rank) {
    const auto mesh = mesh_of(rank.comm, 2);
    const auto row = std::make_shared<DeviceMesh>(
        c10::kCPU, std::vector<int64_t>{2}, std::vector<std::string>{"row"},
        std::vector<std::shared_ptr<Collectives>>{mesh->group(1)});
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    const FSDPModule block = fully_shard(model->blocks[0].ptr(), {.mesh = row});
    FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    root.init_parameters(initialise);
    torch::optim::SGD of_block(block.parameters(), 0.1);
    GradScaler scaler({.init_scale = 8});
    scaler.scale(loss(model, 0, rank.rank)).backward();
    if (rank.rank == 3) {
      spoil(block, kInf);
    }
    const at::Tensor before = block.sharded_parameters()[0].local.clone();
    scaler.step(of_block);
    scaler.update();
    EXPECT_TRUE(at::equal(block.sharded_parameters()[0].local, before));
    EXPECT_EQ(scaler.get_scale(), 4);
  });
}

// Ranks that share no parameters, as the stages of a pipeline do not.
TEST(ScaledOptimizersTest, AgreeOverAGroupThatIsGiven) {
  run_ranks(2, [](Rank& rank) {
    at::Tensor weight = at::ones({3}).requires_grad_();
    torch::optim::SGD optimizer({weight}, 0.5);
    GradScaler scaler({.init_scale = 8, .process_group = rank.comm});
    for (const bool overflows : {true, false}) {
      scaler.scale((weight * (overflows && rank.rank == 1 ? kInf : 1)).sum()).backward();
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
      EXPECT_TRUE(at::equal(weight, at::full({3}, overflows ? 1.0 : 0.5)));
      EXPECT_EQ(scaler.get_scale(), 4);
    }
  });
}

TEST(ScaledOptimizersTest, TakeGradientsInFloat16AndSparseOnes) {
  at::Tensor half = at::ones({3}, at::kHalf).requires_grad_();
  at::Tensor table = at::ones({5, 2}).requires_grad_();
  torch::optim::SGD optimizer({half, table}, 0.5);
  GradScaler scaler({.init_scale = 8});
  const at::Tensor rows = at::embedding(table, at::tensor({1, 1, 4}), -1, false, /*sparse=*/true);
  scaler.scale(rows.sum() + half.to(at::kFloat).sum()).backward();
  ASSERT_TRUE(table.grad().is_sparse());
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(half.grad(), at::ones({3}, at::kHalf)));
  EXPECT_TRUE(
      at::equal(table.grad().to_dense().select(1, 0), at::tensor({0.F, 2.F, 0.F, 0.F, 1.F})));
}

// What overflowed stays there to be looked at; else it has been divided.
TEST(ScaledStepTest, WritesGradientsOnlyIfItTakesPlace) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    PlainTraining plain({}, rank.size, {});
    GradScaler scaler({.init_scale = 8});
    scaler.scale(loss(setup.model, 0, rank.rank)).backward();
    const at::Tensor scaled = setup.root.sharded_gradients()[0].local.clone();
    if (rank.rank == 1) {
      spoil(setup.root, kInf, "block2.down");
    }
    scaler.step(optimizer);
    EXPECT_TRUE(at::equal(setup.root.sharded_gradients()[0].local, scaled));
    scaler.update();
    optimizer.zero_grad();
    scaler.scale(loss(setup.model, 0, rank.rank)).backward();
    scaler.step(optimizer);
    expect_gradients(rank, setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

}  // namespace
}  // namespace fsdp::testing
