// Optimizers, clipping and state dicts of parameters that are divided along a dimension.

#include <fsdp/clip_grad.h>
#include <fsdp/grad_scaler.h>
#include <fsdp/state_dict.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <memory>
#include <optional>

#include "tests/unit/fsdp_runtime/engine/placed_model.h"

namespace fsdp::testing {
namespace {

FullyShardOptions by_rows() { return {.shard_placement_fn = shard_on_dim(0)}; }
FullyShardOptions by_matrices() { return {.shard_placement_fn = inner_of_down()}; }

/// Each row of a matrix moves by the direction of its gradient: needs whole rows.
void normalised_step(const at::Tensor& parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = gradient.flatten(1);
  parameter.sub_((rows / rows.norm(2, {1}, true).clamp_min(1e-12)).view(gradient.sizes()), 0.1);
}

TEST(PlacedOptimTest, AnOptimizerOfWholeRowsDoesWhatItDoesWithoutSharding) {
  for (const int64_t ranks : {1, 2, 4}) {
    PlainTraining plain(placed_toy(), ranks, {});
    for (int64_t step = 0; step < 3; ++step) {
      const Gradients gradients =
          plain.gradients([&](int64_t rank) { return loss(plain.model, step, rank); });
      for (const auto& [fqn, parameter] : plain.unique_parameters()) {
        if (parameter.dim() == 2 && gradients.contains(fqn)) {
          normalised_step(parameter, gradients.at(fqn));
        }
      }
    }
    run_ranks(ranks, [&](Rank& rank) {
      Sharded setup = make(rank, placed_toy(), by_rows());
      for (int64_t step = 0; step < 3; ++step) {
        loss(setup.model, step, rank.rank).backward();
        for (const at::Tensor& leaf : setup.root.parameters()) {
          if (leaf.dim() == 2 && leaf.grad().defined()) {
            EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
            normalised_step(leaf, leaf.grad());
          }
          leaf.mutable_grad().reset();
        }
      }
      for (const LocalShard& shard : setup.root.sharded_parameters()) {
        expect_piece(shard, plain.parameter(shard.fqn), 1e-5);
      }
    });
  }
}

/// Weights after three steps with an optimizer of torch::optim.
template <class Optimizer, class Options>
Trained train_with(Sharded setup, int64_t rank, const Options& options) {
  Optimizer optimizer(setup.root.parameters(), options);
  for (int64_t step = 0; step < 3; ++step) {
    loss(setup.model, step, rank).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  Trained trained;
  add_parameters(setup.root, trained);
  return trained;
}

TEST(PlacedOptimTest, OptimizersOfTorchHaveTheBitsOfTheFlatLayout) {
  run_ranks(3, [](Rank& rank) {
    const auto sgd = torch::optim::SGDOptions(0.05).momentum(0.9);
    const auto adam = torch::optim::AdamOptions(0.05);
    const auto of = [&](const FullyShardOptions& options) {
      return make(rank, placed_toy(), options);
    };
    expect_same_bits(train_with<torch::optim::SGD>(of(by_matrices()), rank.rank, sgd),
                     train_with<torch::optim::SGD>(of({}), rank.rank, sgd));
    expect_same_bits(train_with<torch::optim::Adam>(of(by_matrices()), rank.rank, adam),
                     train_with<torch::optim::Adam>(of({}), rank.rank, adam));
  });
}

TEST(PlacedOptimTest, NormsAreOfAllRanksAndPaddingIsNone) {
  run_ranks(4, [](Rank& rank) {
    Sharded flat = make(rank, placed_toy());
    Sharded chunked = make(rank, placed_toy(), by_matrices());
    loss(flat.model, 0, rank.rank).backward();
    loss(chunked.model, 0, rank.rank).backward();
    const double expected = clip_grad_norm_(flat.root, 0.1).item<double>();
    EXPECT_NEAR(clip_grad_norm_(chunked.root, 0.1).item<double>(), expected, 1e-6 * expected);
    EXPECT_NEAR(get_total_norm(chunked.root).item<double>(), 0.1, 1e-5);
    for (const FSDPModule& unit : chunked.root.units()) {
      for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
        for (const plan::Range& gap : plan::padding_of_rank(group->store().layout(), rank.rank)) {
          const int64_t numel = gap.end - gap.begin;
          EXPECT_FALSE(group->gradient().narrow(0, gap.begin, numel).any().item<bool>());
          EXPECT_FALSE(group->store().shard().narrow(0, gap.begin, numel).any().item<bool>());
        }
      }
    }
  });
}

TEST(PlacedOptimTest, AScalerSkipsWhatOverflowsOnOneRank) {
  run_ranks(3, [](Rank& rank) {
    const auto run = [&](const FullyShardOptions& options) {
      Sharded setup = make(rank, placed_toy(), options);
      AdamW optimizer(setup.root, {.lr = 0.05});
      GradScaler scaler({.init_scale = 8});
      for (int64_t step = 0; step < 3; ++step) {
        scaler.scale(loss(setup.model, step, rank.rank)).backward();
        if (step == 1 && rank.rank == 2) {
          for (const LocalShard& gradient : setup.root.sharded_gradients()) {
            if (gradient.local.defined()) {  // of some parameters it has nothing
              gradient.local.fill_(INFINITY);
            }
          }
        }
        scaler.step(optimizer);
        scaler.update();
        optimizer.zero_grad();
      }
      EXPECT_EQ(optimizer.step_count(), 2);
      Trained trained;
      add_parameters(setup.root, trained);
      return trained;
    };
    expect_same_bits(run(by_matrices()), run({}));
  });
}

struct WholeState {
  ModelStateDict model;
  OptimizerStateDict optimizer;
};

/// Loads `from`, if there is one, trains on, and gives back what is there then, whole.
WholeState train_on(int64_t ranks, const FullyShardOptions& options,
                    const std::optional<WholeState>& from, int64_t steps, bool uses_torch) {
  WholeState state;
  run_ranks(ranks, [&](Rank& rank) {
    Sharded setup = make(rank, placed_toy(), options);
    std::unique_ptr<AdamW> own;
    std::unique_ptr<torch::optim::Adam> torchs;
    const auto ref = [&]() -> OptimizerRef {
      return uses_torch ? OptimizerRef(*torchs) : OptimizerRef(*own);
    };
    if (uses_torch) {
      torchs = std::make_unique<torch::optim::Adam>(setup.root.parameters(),
                                                    torch::optim::AdamOptions(0.05));
    } else {
      own = std::make_unique<AdamW>(setup.root, AdamWOptions{.lr = 0.05});
    }
    const StateDictOptions whole{.full_state_dict = true};
    if (from) {
      set_state_dict(setup.root, ref(), from->model, from->optimizer, whole);
    }
    for (int64_t step = 0; step < steps; ++step) {
      loss(setup.model, step, 0).backward();  // the same at each number of ranks
      if (uses_torch) {
        torchs->step();
        torchs->zero_grad();
      } else {
        own->step();
        own->zero_grad();
      }
    }
    const auto [model, optimizer] = get_state_dict(setup.root, ref(), whole);
    if (rank.rank == 0) {
      state = {model, optimizer};
    }
  });
  return state;
}

void expect_equal_values(const StateValue& found, const StateValue& expected,
                         const std::string& name) {
  EXPECT_TRUE(at::equal(std::get<at::Tensor>(found), std::get<at::Tensor>(expected))) << name;
}

void expect_equal_states(const WholeState& found, const WholeState& expected) {
  ASSERT_EQ(found.model.size(), expected.model.size());
  for (const auto& entry : expected.model) {
    expect_equal_values(found.model[entry.key()], entry.value(), entry.key());
  }
  ASSERT_EQ(found.optimizer.state.size(), expected.optimizer.state.size());
  ASSERT_GT(expected.optimizer.state.size(), 0U);
  for (const auto& entry : expected.optimizer.state) {
    for (const auto& state : entry.value()) {
      expect_equal_values(found.optimizer.state[entry.key()][state.key()], state.value(),
                          entry.key() + "." + state.key());
    }
  }
}

TEST(PlacedStateTest, GoesFromOneLayoutAndNumberOfRanksToAnotherWithItsBits) {
  for (const bool uses_torch : {false, true}) {
    const WholeState trained = train_on(3, {}, std::nullopt, 2, uses_torch);
    const WholeState in_rows = train_on(4, by_rows(), trained, 0, uses_torch);
    expect_equal_states(in_rows, trained);
    const WholeState in_matrices = train_on(2, by_matrices(), in_rows, 0, uses_torch);
    expect_equal_states(in_matrices, trained);
    expect_equal_states(train_on(3, {}, in_matrices, 0, uses_torch), trained);
    expect_equal_states(train_on(2, by_matrices(), in_matrices, 2, uses_torch),
                        train_on(2, {}, trained, 2, uses_torch));
  }
}

TEST(PlacedStateTest, ShardsAreLoadedWhereTheyWereDividedAlike) {
  run_ranks(3, [](Rank& rank) {
    Sharded saved = make(rank, placed_toy(), by_matrices());
    const ModelStateDict shards = get_model_state_dict(saved.root, {.cpu_offload = true});
    Sharded other = make(rank, placed_toy(), by_matrices());
    other.root.init_parameters([](const std::string&, at::Tensor full) { full.zero_(); });
    set_model_state_dict(other.root, shards);
    Trained found;
    Trained expected;
    add_parameters(other.root, found);
    add_parameters(saved.root, expected);
    expect_same_bits(found, expected);
    Sharded flat = make(rank, placed_toy());
    EXPECT_NE(refusal([&] {
                set_model_state_dict(flat.root, shards);
              }).find("another number of ranks, or another division"),
              std::string::npos);
  });
}

/// Copies what `source` has of `target`, by boxes.
void copy_boxes(const LocalShard& source, const LocalShard& target) {
  int64_t from_begin = 0;
  for (const Box& from : source.boxes) {
    int64_t to_begin = 0;
    for (const Box& to : target.boxes) {
      if (const auto part = plan::intersect(from, to)) {
        plan::for_each_run(*part, from, to, [&](int64_t begin, int64_t end, int64_t numel) {
          target.local.narrow(0, to_begin + end, numel)
              .copy_(source.local.narrow(0, from_begin + begin, numel));
        });
      }
      to_begin += plan::numel_of(to);
    }
    from_begin += plan::numel_of(from);
  }
}

TEST(PlacedStateTest, BoxesSayWhereShardsOfOtherRanksGo) {
  const auto reshard = [](const FullyShardOptions& from, int64_t from_ranks,
                          const FullyShardOptions& to, int64_t to_ranks) {
    std::vector<std::vector<LocalShard>> saved(static_cast<size_t>(from_ranks));
    run_ranks(from_ranks, [&](Rank& rank) {
      Sharded setup = make(rank, placed_toy(), from);
      for (LocalShard& shard : setup.root.sharded_parameters()) {
        shard.local = shard.local.clone();
        saved[static_cast<size_t>(rank.rank)].push_back(shard);
      }
    });
    run_ranks(to_ranks, [&](Rank& rank) {
      Sharded setup = make(rank, placed_toy(), to);
      setup.root.init_parameters([](const std::string&, at::Tensor full) { full.zero_(); });
      const std::vector<LocalShard> targets = setup.root.sharded_parameters();
      for (const std::vector<LocalShard>& shards : saved) {
        for (size_t i = 0; i < targets.size(); ++i) {
          copy_boxes(shards.at(i), targets[i]);
        }
      }
      for (const LocalShard& target : targets) {
        at::Tensor whole = at::empty(target.global_shape);
        initialise(target.fqn, whole);
        EXPECT_TRUE(at::equal(setup.root.full_parameter(target.fqn), whole)) << target.fqn;
      }
    });
  };
  reshard({}, 3, by_rows(), 4);
  reshard(by_matrices(), 4, {}, 3);
  reshard(by_matrices(), 2, by_rows(), 3);
}

}  // namespace
}  // namespace fsdp::testing
