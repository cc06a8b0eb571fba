// Several optimizers of one model.

#include <gtest/gtest.h>
#include <torch/optim.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/grouped_model.h"

namespace fsdp::testing {
namespace {

bool is_matrix(const std::string& fqn) { return group_of(fqn) == 0; }

/// Two optimizers of one model: `rest` has what `groups_of` gives to none and the second group.
struct Shared {
  explicit Shared(const Rank& rank)
      : setup(make(rank)), matrices(setup.root, {groups_of(setup.root)[0]}, kDefaults) {
    AdamWParamGroup others = groups_of(setup.root)[1];
    others.params.insert(others.params.begin(), "embedding");
    rest.emplace(setup.root, std::vector<AdamWParamGroup>{others}, kDefaults);
  }
  Sharded setup;
  AdamW matrices;
  std::optional<AdamW> rest;
};

class SeveralOptimizersTest : public ::testing::TestWithParam<int64_t> {};

// The second steps every other time, with the sum of the gradients since.
TEST_P(SeveralOptimizersTest, ShareAModelAndLeaveEachOthersGradients) {
  run_ranks(GetParam(), [](Rank& rank) {
    Shared shared(rank);
    PlainTraining plain({}, rank.size, {});
    const std::vector<AdamWOptions> options = options_by_group();
    bool with_rest = false;
    plain.options_of = [&](const std::string& fqn) -> std::optional<AdamWOptions> {
      const size_t group = is_matrix(fqn) ? 0 : 1;
      return group == 0 || with_rest ? std::optional(options[group]) : std::nullopt;
    };
    Gradients sum;
    for (int64_t step = 0; step < 4; ++step) {
      with_rest = step % 2 == 1;
      for (const auto& [fqn, gradient] : gradients_in(plain, step)) {
        sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
      }
      plain.update(sum);
      std::erase_if(sum, [&](const auto& entry) { return with_rest || is_matrix(entry.first); });
      backward_in(shared.setup, step, rank.rank);
      shared.matrices.step();
      shared.matrices.zero_grad();
      for (const LocalShard& gradient : shared.setup.root.sharded_gradients()) {
        EXPECT_FALSE(gradient.local.defined() && is_matrix(gradient.fqn)) << gradient.fqn;
      }
      if (with_rest) {
        shared.rest->step();
        shared.rest->zero_grad();
      }
    }
    expect_parameters(shared.setup.root, plain);
  });
}

// So that the next backward writes it, and has nothing to add to.
TEST_P(SeveralOptimizersTest, TheLastOfThemDropsTheGradientOfAUnit) {
  run_ranks(GetParam(), [](Rank& rank) {
    Shared shared(rank);
    const auto has_gradients = [&shared] {
      std::vector<bool> has;
      for (const FSDPModule& unit : shared.setup.root.units()) {
        for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
          has.push_back(group->gradient().defined());
        }
      }
      return has;
    };
    for (int64_t step = 0; step < 2; ++step) {
      backward_in(shared.setup, step, rank.rank);
      const std::vector<bool> all = has_gradients();
      EXPECT_EQ(all, std::vector<bool>(all.size(), true));
      shared.matrices.zero_grad();
      EXPECT_EQ(has_gradients(), all);  // of the others in each unit
      shared.rest->zero_grad();
      EXPECT_EQ(has_gradients(), std::vector<bool>(all.size(), false));
    }
  });
}

// Gradients that are collected, and those of a backward behind which ranks have not told each other
// what they have used.
TEST_P(SeveralOptimizersTest, ZeroGradBetweenBackwardsDropsWhatIsOfItsParametersOnly) {
  for (const bool is_reduced : {false, true}) {
    run_ranks(GetParam(), [is_reduced](Rank& rank) {
      Shared shared(rank);
      PlainTraining plain({}, rank.size, {});
      const std::vector<at::Tensor> leaves = shared.setup.root.parameters();  // see gradients too
      shared.setup.root.set_requires_gradient_sync(is_reduced);
      shared.setup.root.set_is_last_backward(!is_reduced);
      loss(shared.setup.model, 0, rank.rank).backward();
      shared.matrices.zero_grad();
      shared.setup.root.set_requires_gradient_sync(true);
      shared.setup.root.set_is_last_backward(true);
      loss(shared.setup.model, 1, rank.rank).backward();
      const Gradients second = plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); });
      Gradients expected = second;
      add_gradients(expected, plain, [&](int64_t r) { return loss(plain.model, 0, r); });
      for (auto& [fqn, gradient] : expected) {
        gradient = is_matrix(fqn) ? second.at(fqn) : gradient;
      }
      expect_gradients(rank, shared.setup.root, expected, 1e-7);
    });
  }
}

/// LibTorch's SGD on what is no matrix, with decay, so that a gradient of zeros is not as good as
/// none.
std::unique_ptr<torch::optim::SGD> sgd_of(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters) {
  std::vector<at::Tensor> rest;
  for (const auto& [fqn, tensor] : parameters) {
    if (!is_matrix(fqn)) {
      rest.push_back(tensor);
    }
  }
  return std::make_unique<torch::optim::SGD>(rest, torch::optim::SGDOptions(0.1).weight_decay(0.1));
}

/// Who steps.
struct Turn {
  bool matrices = true;
  bool rest = true;
  bool has(const std::string& fqn) const { return is_matrix(fqn) ? matrices : rest; }
};

/// AdamW on the matrices and SGD on the rest, without sharding.
struct PlainPair {
  explicit PlainPair(int64_t ranks) : training({}, ranks, {}) {}

  void add_gradients(int64_t step) {
    for (const auto& [fqn, gradient] : gradients_in(training, step)) {
      sum[fqn] = sum.contains(fqn) ? sum[fqn] + gradient : gradient;
    }
  }
  void step_and_drop(const Turn& turn) {
    training.options_of = [&turn](const std::string& fqn) -> std::optional<AdamWOptions> {
      return turn.matrices && is_matrix(fqn) ? std::optional(options_by_group()[0]) : std::nullopt;
    };
    training.update(sum);
    for (const auto& [fqn, parameter] : parameters) {
      const auto found = sum.find(fqn);
      parameter.mutable_grad() = found == sum.end() ? at::Tensor() : found->second;
    }
    if (turn.rest) {
      sgd->step();
    }
    std::erase_if(sum, [&turn](const auto& entry) { return turn.has(entry.first); });
  }

  PlainTraining training;
  const std::vector<std::pair<std::string, at::Tensor>> parameters = training.unique_parameters();
  std::unique_ptr<torch::optim::SGD> sgd = sgd_of(parameters);
  Gradients sum;
};

// One of them steps every other time, with the sum of its gradients since.
TEST_P(SeveralOptimizersTest, OneOfLibTorchSharesAModelWithOurs) {
  for (const bool sgd_waits : {false, true}) {
    run_ranks(GetParam(), [sgd_waits](Rank& rank) {
      Sharded setup = make(rank);
      AdamW matrices(setup.root, {groups_of(setup.root)[0]}, kDefaults);
      const auto rest = sgd_of(setup.root.named_parameters());
      PlainPair plain(rank.size);
      for (int64_t step = 0; step < 4; ++step) {
        const Turn turn{sgd_waits || step % 2 == 1, !sgd_waits || step % 2 == 1};
        plain.add_gradients(step);
        plain.step_and_drop(turn);
        backward_in(setup, step, rank.rank);
        if (turn.rest) {
          rest->step();
          rest->zero_grad();
        }
        if (turn.matrices) {
          matrices.step();
          matrices.zero_grad();
        }
        for (const auto& [fqn, leaf] : setup.root.named_parameters()) {
          EXPECT_EQ(leaf.grad().defined(), plain.sum.contains(fqn)) << fqn;
        }
      }
      expect_parameters(setup.root, plain.training);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SeveralOptimizersTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "ranks"; });

TEST(SeveralOptimizersOverRowsTest, ZeroGradDropsTheRowsSumsOfItsParametersOnly) {
  run_ranks(4, [](Rank& rank) {
    rank.mesh = mesh_of(rank.comm, 2);
    Shared shared(rank);
    PlainTraining plain({}, 4, {});
    shared.setup.root.set_requires_all_reduce(false);
    loss(shared.setup.model, 0, rank.rank).backward();
    shared.matrices.zero_grad();
    shared.setup.root.set_requires_all_reduce(true);
    loss(shared.setup.model, 1, rank.rank).backward();
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); });
    for (const auto& [fqn, gradient] :
         plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); })) {
      expected[fqn] = is_matrix(fqn) ? expected[fqn] : expected[fqn] + gradient;
    }
    expect_in_every_row(rank, shared.setup.root, expected, 2e-7);
  });
}

}  // namespace
}  // namespace fsdp::testing
