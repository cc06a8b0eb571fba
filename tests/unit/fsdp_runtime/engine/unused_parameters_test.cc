// What becomes of parameters that take part in some steps only, and on some ranks only.

#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Which blocks use their spare parameter: block 0 never, block 1 in every second step on the last
/// rank only, block 2 from the third step on everywhere.
void choose_spares(const Unit<ToyModel>& model, int64_t step, int64_t rank, int64_t ranks) {
  model->blocks[0]->use_spare = false;
  model->blocks[1]->use_spare = step % 2 == 0 && rank == ranks - 1;
  model->blocks[2]->use_spare = step >= 2;
}

AdamWOptions options() {
  AdamWOptions options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  return options;
}

/// One step from the loss of `step`.
void train_step(const Rank& rank, Sharded& setup, AdamW& optimizer, int64_t step) {
  choose_spares(setup.model, step, rank.rank, rank.size);
  loss(setup.model, step, rank.rank).backward();
  clip_grad_norm_(setup.root, 0);
  optimizer.step();
  optimizer.zero_grad();
}

std::map<std::string, int64_t> steps_of(const Sharded& setup, const AdamW& optimizer) {
  std::map<std::string, int64_t> steps;
  const std::vector<int64_t> counts = optimizer.parameter_steps();
  const std::vector<LocalShard> slices = setup.root.sharded_parameters();
  for (size_t i = 0; i < slices.size(); ++i) {
    steps[slices[i].fqn] = counts.at(i);
  }
  return steps;
}

void copy_slices(const std::vector<LocalShard>& from, const std::vector<LocalShard>& to) {
  ASSERT_EQ(from.size(), to.size());
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor target = to[i].local;
    target.copy_(from[i].local);
  }
}

TEST(UnusedParametersTest, AreLeftAloneBitByBitUnlessSomeRankUsesThem) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      AdamW optimizer(setup.root, options());
      PlainTraining plain({}, rank.size, options());
      for (int64_t step = 0; step < 5; ++step) {
        plain.update(plain.gradients([&](int64_t r) {
          choose_spares(plain.model, step, r, rank.size);
          return loss(plain.model, step, r);
        }));
        train_step(rank, setup, optimizer, step);
      }
      for (const LocalShard& slice : setup.root.sharded_parameters()) {
        EXPECT_TRUE(at::equal(setup.root.full_parameter(slice.fqn), plain.parameter(slice.fqn)))
            << slice.fqn;
      }
      for (const auto& [fqn, steps] : steps_of(setup, optimizer)) {
        const int64_t expected = fqn == "block0.spare"                            ? 0
                                 : fqn == "block1.spare" || fqn == "block2.spare" ? 3
                                                                                  : 5;
        EXPECT_EQ(steps, expected) << fqn;
      }
      for (const LocalShard& slice : optimizer.exp_avg()) {
        if (slice.fqn == "block0.spare") {
          EXPECT_TRUE(at::equal(slice.local, at::zeros_like(slice.local)));
        }
      }
    });
  }
}

TEST(UnusedParametersTest, TrainingGoesOnWithUnequalStepCountsOfOneGroup) {
  run_ranks(2, [](Rank& rank) {
    Sharded first = make(rank);
    AdamW optimizer(first.root, options());
    for (int64_t step = 0; step < 3; ++step) {
      train_step(rank, first, optimizer, step);
    }
    Sharded second = make(rank);
    AdamW resumed(second.root, options());
    copy_slices(first.root.sharded_parameters(), second.root.sharded_parameters());
    copy_slices(optimizer.exp_avg(), resumed.exp_avg());
    copy_slices(optimizer.exp_avg_sq(), resumed.exp_avg_sq());
    resumed.set_parameter_steps(optimizer.parameter_steps());
    EXPECT_EQ(resumed.step_count(), 3);
    EXPECT_EQ(steps_of(second, resumed), steps_of(first, optimizer));
    for (int64_t step = 3; step < 6; ++step) {
      train_step(rank, first, optimizer, step);
      train_step(rank, second, resumed, step);
    }
    for (const LocalShard& slice : first.root.sharded_parameters()) {
      EXPECT_TRUE(
          at::equal(first.root.full_parameter(slice.fqn), second.root.full_parameter(slice.fqn)))
          << slice.fqn;
    }
    EXPECT_EQ(steps_of(second, resumed), steps_of(first, optimizer));
  });
}

TEST(UnusedParametersTest, UseInAnyMicrobatchCounts) {
  for (const bool syncs : {false, true}) {
    for (const int64_t ranks : {1, 2}) {
      run_ranks(ranks, [&](Rank& rank) {
        Sharded setup = make(rank);
        const Unit<ToyBlock> block = setup.model->blocks[1];
        block->use_spare = rank.rank == 0;
        setup.root.set_requires_gradient_sync(syncs);
        loss(setup.model, 0, rank.rank).backward();
        block->use_spare = false;
        setup.root.set_requires_gradient_sync(true);
        loss(setup.model, 1, rank.rank).backward();
        PlainTraining plain({}, rank.size, {});
        Gradients expected = plain.gradients([&](int64_t r) {
          plain.model->blocks[1]->use_spare = r == 0;
          at::Tensor sum = loss(plain.model, 0, r);
          plain.model->blocks[1]->use_spare = false;
          return sum + loss(plain.model, 1, r);
        });
        EXPECT_TRUE(expected.contains("block1.spare"));
        expect_gradients(rank, setup.root, expected, 1e-7);
        AdamW(setup.root, {}).zero_grad();
        loss(setup.model, 1, rank.rank).backward();
        expect_gradients(rank, setup.root,
                         plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); }));
      });
    }
  }
}

// Every rank takes part in the reduction; where all use the same nothing more is exchanged.
TEST(UnusedParametersTest, OnlyRanksThatDifferAskEachOther) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.model->blocks[1]->use_spare = true;
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(count(rank, "all_reduce"), 0);
    setup.model->blocks[1]->use_spare = rank.rank == 1;
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(count(rank, "all_reduce"), 1);
  });
}

}  // namespace
}  // namespace fsdp::testing
