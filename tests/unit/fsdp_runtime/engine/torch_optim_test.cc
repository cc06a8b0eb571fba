// Optimizers of torch::optim on the shards' leaves do what they do without sharding.

#include <gtest/gtest.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

using Optimizer = std::shared_ptr<torch::optim::Optimizer>;
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;
using MakeOptimizer = std::function<Optimizer(const NamedParameters& parameters)>;

std::vector<at::Tensor> tensors_of(const NamedParameters& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) {
    tensors.push_back(tensor);
  }
  return tensors;
}

template <class O, class Options>
MakeOptimizer with(Options options) {
  return [options](const NamedParameters& parameters) -> Optimizer {
    return std::make_shared<O>(tensors_of(parameters), options);
  };
}

struct Course {
  std::string name;
  MakeOptimizer make;
  bool sets_to_none = true;    // zero_grad(); false: zeros in place
  int64_t micro_batches = 1;   // whose gradients are added in `.grad`
  bool skips_a_block = false;  // in some steps, which leaves its parameters without gradient
};

int64_t skipped_in(const Course& course, int64_t step) {
  return course.skips_a_block && step % 2 == 1 ? 1 : -1;
}

/// The parameters after four steps without sharding.
std::map<std::string, at::Tensor> train_plain(const Course& course, int64_t ranks) {
  PlainTraining plain(ToyConfig{}, ranks, {});
  const NamedParameters parameters = plain.unique_parameters();
  const Optimizer optimizer = course.make(parameters);
  for (int64_t step = 0; step < 4; ++step) {
    plain.model->skipped = skipped_in(course, step);
    std::map<std::string, at::Tensor> sum;
    for (int64_t micro = 0; micro < course.micro_batches; ++micro) {
      for (const auto& [name, gradient] : plain.gradients([&](int64_t rank) {
             return loss(plain.model, step * course.micro_batches + micro, rank);
           })) {
        sum[name] = sum[name].defined() ? sum[name] + gradient : gradient;
      }
    }
    for (const auto& [name, parameter] : parameters) {
      // Zeroed in place, a gradient stays there, once there has been one.
      const bool stays =
          !course.sets_to_none && step > 0 && name.find("spare") == std::string::npos;
      parameter.mutable_grad() =
          sum[name].defined() || !stays ? sum[name] : at::zeros_like(parameter);
    }
    optimizer->step();
  }
  std::map<std::string, at::Tensor> result;
  for (const auto& [name, parameter] : parameters) {
    result[name] = parameter.detach();
  }
  return result;
}

void train_sharded(const Course& course, const Rank& rank,
                   const std::map<std::string, at::Tensor>& expected, double bound = 0) {
  Sharded setup = make(rank);
  const Optimizer optimizer = course.make(setup.root.named_parameters());
  for (int64_t step = 0; step < 4; ++step) {
    setup.model->skipped = skipped_in(course, step);
    for (int64_t micro = 0; micro < course.micro_batches; ++micro) {
      loss(setup.model, step * course.micro_batches + micro, rank.rank).backward();
    }
    optimizer->step();
    optimizer->zero_grad(course.sets_to_none);
  }
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    expect_piece(shard, expected.at(shard.fqn), bound);
  }
}

class TorchOptimTest : public ::testing::TestWithParam<std::tuple<int64_t, Course>> {};

TEST_P(TorchOptimTest, DoesWhatItDoesWithoutSharding) {
  const auto& [ranks, course] = GetParam();
  const std::map<std::string, at::Tensor> expected = train_plain(course, ranks);
  for (const auto& [name, initial] : PlainTraining({}, ranks, {}).unique_parameters()) {
    EXPECT_EQ(at::equal(expected.at(name), initial), name.ends_with("spare")) << name;
  }
  run_ranks(ranks, [&, &course = course](Rank& rank) { train_sharded(course, rank, expected); });
}

/// Matrices with decay and a rate of their own, the rest without.
Optimizer in_groups(const NamedParameters& parameters) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> rest;
  for (const auto& [name, tensor] : parameters) {
    (name.find("up") != std::string::npos || name.find("down") != std::string::npos ? matrices
                                                                                    : rest)
        .push_back(tensor);
  }
  using Options = torch::optim::AdamWOptions;
  return std::make_shared<torch::optim::AdamW>(std::vector<torch::optim::OptimizerParamGroup>{
      {matrices, std::make_unique<Options>(Options(1e-2).weight_decay(0.1).betas({0.8, 0.9}))},
      {rest, std::make_unique<Options>(Options(3e-3).weight_decay(0))}});
}

std::vector<Course> courses() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  const MakeOptimizer momentum =
      with<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  const MakeOptimizer adam = with<Adam>(AdamOptions(1e-2));
  return {{"sgd", with<torch::optim::SGD>(torch::optim::SGDOptions(0.1))},
          {"momentum", momentum},
          {"adam", adam},
          {"adamw", with<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2))},
          {"rmsprop", with<RMSprop>(RMSpropOptions(1e-3).momentum(0.5).centered(true))},
          {"adagrad", with<Adagrad>(AdagradOptions(1e-2))},
          {"groups", in_groups},
          {"zeroed_in_place", momentum, /*sets_to_none=*/false},
          {"accumulated", adam, true, /*micro_batches=*/3},
          {"accumulated_in_place", adam, false, 2},
          {"unused", adam, true, 1, /*skips_a_block=*/true},
          {"unused_in_place", momentum, false, 1, true}};
}

INSTANTIATE_TEST_SUITE_P(Ranks, TorchOptimTest,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::ValuesIn(courses())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" +
                                  std::to_string(std::get<0>(info.param)) + "ranks";
                         });

// Which sums the rows' sums: another order than that of the ranks.
TEST(TorchOptimOverRowsTest, DoesWhatItDoesWithoutSharding) {
  const Course course{"momentum",
                      with<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))};
  const std::map<std::string, at::Tensor> expected = train_plain(course, 4);
  run_ranks(4, [&](Rank& rank) {
    rank.mesh = mesh_of(rank.comm, 2);
    train_sharded(course, rank, expected, 1e-6);
  });
}

TEST(ShardedLeavesTest, AreTheSameEachTimeAndHaveNoGradientBeforeABackward) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const NamedParameters named = setup.root.named_parameters();
    const std::vector<at::Tensor> again = setup.root.parameters();
    const std::vector<LocalShard> shards = setup.root.sharded_parameters();
    ASSERT_EQ(named.size(), shards.size());
    for (size_t i = 0; i < named.size(); ++i) {
      EXPECT_EQ(named[i].first, shards[i].fqn);
      EXPECT_TRUE(named[i].second.is_same(again[i]));
      EXPECT_TRUE(named[i].second.is_leaf());
      EXPECT_TRUE(named[i].second.requires_grad());
      EXPECT_FALSE(named[i].second.grad().defined());
      EXPECT_EQ(named[i].second.const_data_ptr(), shards[i].local.const_data_ptr());
    }
  });
}

TEST(ShardedLeavesTest, ShowWhatIsClippedAndForgetWhatIsDropped) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const std::vector<at::Tensor> leaves = setup.root.parameters();
    loss(setup.model, 0, rank.rank).backward();
    const at::Tensor before = leaves[0].grad().clone();
    const double norm = clip_grad_norm_(setup.root, 1e-3).item<double>();
    EXPECT_GT(norm, 1e-3);
    EXPECT_LT(leaves[0].grad().norm().item<double>(), before.norm().item<double>());
    for (const at::Tensor& leaf : leaves) {
      leaf.mutable_grad().reset();
    }
    for (const LocalShard& gradient : setup.root.sharded_gradients()) {
      EXPECT_FALSE(gradient.local.defined()) << gradient.fqn;
    }
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(at::equal(leaves[0].grad(), before));
  });
}

TEST(ShardedLeavesTest, ShowWhatWasCollectedInSeveralBackwards) {
  for (const int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      const NamedParameters named = setup.root.named_parameters();
      PlainTraining plain(ToyConfig{}, rank.size, {});
      for (const int64_t step : {0, 2}) {  // the second finds nothing of the first
        for (const bool syncs : {false, true}) {
          setup.root.set_requires_gradient_sync(syncs);
          loss(setup.model, step + (syncs ? 1 : 0), rank.rank).backward();
        }
        expect_gradients(rank, setup.root, plain.gradients([&](int64_t r) {
          return loss(plain.model, step, r) + loss(plain.model, step + 1, r);
        }),
                         1e-7);
        for (const auto& [fqn, leaf] : named) {
          EXPECT_EQ(leaf.grad().defined(), !fqn.ends_with("spare")) << fqn;
          leaf.mutable_grad().reset();
        }
      }
    });
  }
}

TEST(ShardedLeavesTest, TakeAGradientThatSomebodyHasPutThere) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const std::vector<at::Tensor> leaves = setup.root.parameters();
    loss(setup.model, 0, rank.rank).backward();
    const at::Tensor once = leaves[0].grad().clone();
    leaves[0].mutable_grad() = once * 2;
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(at::allclose(leaves[0].grad(), once * 3));
  });
}

// As a gradient scaler does that divides by its scale out of place.
TEST(ShardedLeavesTest, AGradientThatSomebodyHasPutThereIsClipped) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const std::vector<at::Tensor> leaves = setup.root.parameters();
    loss(setup.model, 0, rank.rank).backward();
    const double norm = clip_grad_norm_(setup.root, 1e9).item<double>();
    for (const at::Tensor& leaf : leaves) {
      if (leaf.grad().defined()) {
        leaf.mutable_grad() = leaf.grad() * 2;
      }
    }
    EXPECT_NEAR(clip_grad_norm_(setup.root, 1e-3).item<double>(), 2 * norm, 1e-5 * norm);
    EXPECT_GT(leaves[0].grad().norm().item<double>(), 0);
    EXPECT_LE(leaves[0].grad().norm().item<double>(), 1.001e-3);
  });
}

}  // namespace
}  // namespace fsdp::testing
