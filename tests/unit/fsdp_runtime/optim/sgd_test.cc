#include <fsdp/sgd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/plain_momentum.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

// What torch.optim.SGD does, in its order.
void torch_sgd(const SGDOptions& options, at::Tensor parameter, at::Tensor gradient,
               at::Tensor& momentum) {
  if (options.weight_decay != 0) {
    gradient = gradient.add(parameter, options.weight_decay);
  }
  if (options.momentum != 0) {
    if (momentum.defined()) {
      momentum.mul_(options.momentum).add_(gradient, 1 - options.dampening);
    } else {
      momentum = gradient.clone();
    }
    gradient = options.nesterov ? gradient.add(momentum, options.momentum) : momentum;
  }
  parameter.add_(gradient, -options.lr);
}

std::vector<SGDOptions> courses() {
  return {{.lr = 0.1},
          {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01},
          {.lr = 0.05, .momentum = 0.8, .dampening = 0.5},
          {.lr = 0.05, .momentum = 0.9, .nesterov = true}};
}

SGDOptions options_for(const std::string& fqn, const SGDOptions& of_matrices) {
  return group_of(fqn) == 0 ? of_matrices : SGDOptions{.lr = 0.02, .momentum = 0.5};
}

/// Two groups: matrices, and the rest.
std::vector<SGDParamGroup> sgd_groups(const FSDPModule& root, const SGDOptions& of_matrices) {
  std::vector<SGDParamGroup> groups(2);
  for (const LocalShard& shard : root.sharded_parameters()) {
    SGDParamGroup& group = groups[group_of(shard.fqn) == 0 ? 0 : 1];
    group.params.push_back(shard.fqn);
    group.options = options_for(shard.fqn, of_matrices);
  }
  return groups;
}

PlainMomentum plain_sgd(int64_t ranks, const SGDOptions& of_matrices) {
  return {ranks, [of_matrices](const std::string& fqn, at::Tensor parameter,
                               const at::Tensor& gradient, at::Tensor& momentum) {
            torch_sgd(options_for(fqn, of_matrices), parameter, gradient, momentum);
          }};
}

class SGDTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(SGDTest, HasTheBitsOfTraining) {
  for (const SGDOptions& options : courses()) {
    run_ranks(GetParam(), [&](Rank& rank) {
      Sharded setup = make(rank);
      SGD optimizer(setup.root, sgd_groups(setup.root, options));
      PlainMomentum expected = plain_sgd(rank.size, options);
      for (int64_t step = 0; step < 4; ++step) {
        expected.train(step);
        backward_in(setup, step, rank.rank);
        optimizer.step();
        optimizer.zero_grad();
      }
      expect_parameters(setup.root, expected.plain);
      expect_momenta(optimizer.momentum_buffer(), expected.momentum);
    });
  }
}

TEST_P(SGDTest, OptionsChangeBetweenSteps) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    SGDOptions options{.lr = 0.1};
    SGD optimizer(setup.root, options);
    PlainMomentum expected(rank.size, [&options](const std::string&, at::Tensor parameter,
                                                 const at::Tensor& gradient, at::Tensor& momentum) {
      torch_sgd(options, parameter, gradient, momentum);
    });
    const std::vector<SGDOptions> courses = {{.lr = 0.1},
                                             {.lr = 0.1, .momentum = 0.9, .dampening = 0.5},
                                             {.lr = 0.05, .momentum = 0.8, .dampening = 0.5},
                                             {.lr = 0.1, .weight_decay = 0.1},
                                             {.lr = 0.1, .momentum = 0.9, .dampening = 0.5}};
    for (size_t step = 0; step < courses.size(); ++step) {
      options = courses[step];
      optimizer.set_options(0, options);
      expected.train(static_cast<int64_t>(step));
      backward_in(setup, static_cast<int64_t>(step), rank.rank);
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_parameters(setup.root, expected.plain);
    expect_momenta(optimizer.momentum_buffer(), expected.momentum);
  });
}

TEST_P(SGDTest, AGradientThatIsNotFiniteChangesNothing) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    SGD optimizer(setup.root, SGDOptions{.lr = 0.1, .momentum = 0.9});
    backward_in(setup, 0, rank.rank);
    const std::vector<int64_t> before = optimizer.parameter_steps();
    optimizer.step(at::ones({}));
    EXPECT_EQ(optimizer.parameter_steps(), before);
    for (const LocalShard& part : optimizer.momentum_buffer()) {
      EXPECT_TRUE(part.local.eq(0).all().item<bool>()) << part.fqn;
    }
    optimizer.step(at::zeros({}));
    EXPECT_NE(optimizer.parameter_steps(), before);
  });
}

TEST_P(SGDTest, GoesOnFromItsStateAtAnotherNumberOfRanks) {
  const SGDOptions options = courses()[2];
  PlainMomentum expected = plain_sgd(2, options);
  std::map<std::string, at::Tensor> weights;
  std::map<std::string, at::Tensor> momenta;
  for (int64_t step = 0; step < 2; ++step) {
    expected.train(step);
  }
  for (const auto& [fqn, parameter] : expected.plain.unique_parameters()) {
    weights[fqn] = parameter.detach().clone();
    momenta[fqn] = expected.momentum[fqn].defined() ? expected.momentum[fqn].clone()
                                                    : at::zeros_like(weights[fqn]);
  }
  run_ranks(GetParam(), [&](Rank& rank) {
    Sharded setup = make(rank);
    SGD optimizer(setup.root, sgd_groups(setup.root, options));
    std::vector<int64_t> steps;
    for (const LocalShard& part : setup.root.sharded_parameters()) {
      part.local.copy_(part_of(weights.at(part.fqn), part));
      steps.push_back(expected.momentum[part.fqn].defined() ? 2 : 0);
    }
    for (const LocalShard& part : optimizer.momentum_buffer()) {
      part.local.copy_(part_of(momenta.at(part.fqn), part));
    }
    optimizer.set_parameter_steps(steps);
    EXPECT_EQ(optimizer.parameter_steps(), steps);
    // All ranks have the batch of rank 0, so that the mean does not depend on how many they are.
    PlainMomentum rest = plain_sgd(1, options);
    {
      at::NoGradGuard no_grad;
      for (const auto& [fqn, parameter] : rest.plain.unique_parameters()) {
        parameter.detach().copy_(weights.at(fqn));
      }
    }
    for (const auto& [fqn, momentum] : momenta) {
      if (expected.momentum[fqn].defined()) {
        rest.momentum[fqn] = momentum.clone();
      }
    }
    rest.train(2);
    backward_in(setup, 2, 0);
    optimizer.step();
    for (const LocalShard& part : setup.root.sharded_parameters()) {
      EXPECT_TRUE(
          at::allclose(part.local, part_of(rest.plain.parameter(part.fqn), part), 1e-6, 1e-7))
          << part.fqn;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SGDTest, ::testing::Values(1, 2, 3));

TEST(SGDOptionsTest, WhatCannotBeIsRefused) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto refusal_of = [&](const SGDOptions& options) {
      return refusal([&] { SGD(setup.root, options); });
    };
    EXPECT_THAT(refusal_of({.lr = -1}), HasSubstr("SGD: lr of param group 0 is -1"));
    EXPECT_THAT(refusal_of({.momentum = NAN}), HasSubstr("momentum of param group 0 is nan"));
    EXPECT_THAT(refusal_of({.weight_decay = -0.5}), HasSubstr("weight_decay"));
    EXPECT_THAT(refusal_of({.nesterov = true}), HasSubstr("nesterov"));
    EXPECT_THAT(refusal_of({.momentum = 0.9, .dampening = 0.1, .nesterov = true}),
                HasSubstr("dampening 0.1"));
    EXPECT_THAT(refusal([&] {
                  SGD(setup.root, std::vector<SGDParamGroup>{{{"head"}, {}}});
                }),
                HasSubstr("SGD: param group 0 names \"head\""));
    EXPECT_THAT(refusal([] { SGD(FSDPModule(), SGDOptions()); }), HasSubstr("empty FSDPModule"));
    SGD optimizer(setup.root, SGDOptions());
    EXPECT_THAT(refusal([&] { optimizer.set_options(1, {}); }), HasSubstr("no param group 1"));
    EXPECT_THAT(refusal([&] { optimizer.set_lr(-1); }), HasSubstr("lr of param group 0"));
    EXPECT_THAT(refusal([&] { optimizer.set_parameter_steps({1}); }),
                HasSubstr("step counts of 1"));
    EXPECT_THAT(refusal([&] { optimizer.step(at::ones({2})); }), HasSubstr("found_inf"));
  });
}

}  // namespace
}  // namespace fsdp::testing
