// AdamW that steps within the backward, against one that steps behind it.

#include <fsdp/counters.h>
#include <fsdp/grad_scaler.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/engine/module_state.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/optim/grouped_model.h"

namespace fsdp::testing {
namespace {

struct Training {
  Sharded setup;
  std::shared_ptr<AdamW> optimizer;
};

Training start(Sharded setup, bool in_backward) {
  auto optimizer = std::make_shared<AdamW>(setup.root, fsdp::AdamWOptions{.lr = 1e-2});
  if (in_backward) {
    apply_optimizer_in_backward(optimizer);
  }
  return {std::move(setup), std::move(optimizer)};
}

void expect_same_tensors(const std::vector<LocalShard>& ones,
                         const std::vector<LocalShard>& others) {
  ASSERT_EQ(ones.size(), others.size());
  for (size_t i = 0; i < ones.size(); ++i) {
    EXPECT_TRUE(at::equal(ones[i].local, others[i].local)) << ones[i].fqn;
  }
}

void expect_same(const Training& in_backward, const Training& behind) {
  expect_same_tensors(in_backward.setup.root.sharded_parameters(),
                      behind.setup.root.sharded_parameters());
  expect_same_tensors(in_backward.optimizer->exp_avg(), behind.optimizer->exp_avg());
  expect_same_tensors(in_backward.optimizer->exp_avg_sq(), behind.optimizer->exp_avg_sq());
  EXPECT_EQ(in_backward.optimizer->parameter_steps(), behind.optimizer->parameter_steps());
  for (const LocalShard& gradient : in_backward.setup.root.sharded_gradients()) {
    EXPECT_FALSE(gradient.local.defined()) << gradient.fqn;
  }
}

/// One step of a training: what comes ahead of the optimizer's.
using Backwards = std::function<void(Sharded& setup, int64_t step, int64_t rank)>;

/// Three steps of two models that `make_model` makes.
void expect_bits_of_a_step_behind(Rank& rank, const std::function<Sharded()>& make_model,
                                  const Backwards& backwards = backward_in) {
  Training in_backward = start(make_model(), true);
  Training behind = start(make_model(), false);
  for (int64_t step = 0; step < 3; ++step) {
    backwards(behind.setup, step, rank.rank);
    behind.optimizer->step();
    behind.optimizer->zero_grad();
    backwards(in_backward.setup, step, rank.rank);
    expect_same(in_backward, behind);
  }
}

class StepInBackwardTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StepInBackwardTest, ::testing::Values(1, 2, 3));

TEST_P(StepInBackwardTest, HasTheBitsOfAStepBehindIt) {
  run_ranks(GetParam(),
            [](Rank& rank) { expect_bits_of_a_step_behind(rank, [&] { return make(rank); }); });
}

TEST_P(StepInBackwardTest, OfUnitsThatAreUsedTwiceOrRecomputed) {
  run_ranks(GetParam(), [](Rank& rank) {
    for (const auto checkpointing :
         {ToyConfig::Checkpointing::kNone, ToyConfig::Checkpointing::kAroundUnit,
          ToyConfig::Checkpointing::kInsideUnit}) {
      ToyConfig config;
      config.use_block_twice = checkpointing == ToyConfig::Checkpointing::kNone;
      config.frozen_first_weight = true;
      config.checkpointing = checkpointing;
      expect_bits_of_a_step_behind(rank, [&] { return make(rank, config); });
    }
  });
}

TEST(StepInBackwardInPlaceTest, WaitsForPeersThatReadTheShard) {
  run_ranks(2, [](Rank& rank) {
    for (const auto compute : {at::kFloat, at::kBFloat16}) {
      FullyShardOptions options{.mp_policy = {.param_dtype = compute}};
      ToyConfig config = wide_toy();
      config.blocks = 3;
      expect_bits_of_a_step_behind(rank, [&] { return make(rank, config, options); });
      options.reshard_after_forward = false;
      expect_bits_of_a_step_behind(rank, [&] { return make(rank, config, options); });
    }
  });
}

TEST(StepInBackwardHybridTest, WithCopies) {
  run_ranks(4, [](Rank& rank) {
    expect_bits_of_a_step_behind(
        rank, [&] { return make_hybrid(rank, 2, {.mp_policy = {.reduce_dtype = at::kHalf}}); });
    expect_bits_of_a_step_behind(
        rank, [&] { return make_hybrid(rank, 2); },
        [](Sharded& setup, int64_t step, int64_t r) {
          for (int64_t batch = 0; batch < 2; ++batch) {
            setup.root.set_requires_all_reduce(batch == 1);
            loss(setup.model, 2 * step + batch, r).backward();
          }
        });
  });
}

TEST(StepInBackwardBatchesTest, StepsOnceWithTheSum) {
  run_ranks(2, [](Rank& rank) {
    const auto of_batches = [](const std::function<void(const FSDPModule&, bool is_last)>& set) {
      return [set](Sharded& setup, int64_t step, int64_t r) {
        for (int64_t batch = 0; batch < 3; ++batch) {
          set(setup.root, batch == 2);
          loss(setup.model, 3 * step + batch, r).backward();
        }
      };
    };
    const auto make_model = [&rank] { return make(rank); };
    expect_bits_of_a_step_behind(rank, make_model, of_batches([](const auto& root, bool is_last) {
                                   root.set_requires_gradient_sync(is_last);
                                 }));
    expect_bits_of_a_step_behind(rank, make_model, of_batches([](const auto& root, bool is_last) {
                                   root.set_is_last_backward(is_last);
                                 }));
  });
}

// The sum of the row waits for its all-reduce when the last backward ends.
TEST(StepInBackwardBatchesTest, ASumThatIsNotAllReducedYetIsKept) {
  run_ranks(4, [](Rank& rank) {
    expect_bits_of_a_step_behind(
        rank, [&] { return make_hybrid(rank, 2); },
        [](Sharded& setup, int64_t step, int64_t r) {
          for (int64_t batch = 0; batch < 3; ++batch) {
            setup.root.set_is_last_backward(batch > 0);
            setup.root.set_requires_all_reduce(batch != 1);
            loss(setup.model, 3 * step + batch, r).backward();
          }
        });
  });
}

TEST(StepInBackwardHookTest, UsesWhatAHookHasReplaced) {
  run_ranks(2, [](Rank& rank) {
    expect_bits_of_a_step_behind(rank, [&] {
      Sharded setup = make(rank);
      setup.root.register_post_accumulate_grad_hook([](const std::string&, at::Tensor parameter) {
        parameter.mutable_grad() = parameter.grad() * 0.5 + 0.25;
      });
      return setup;
    });
  });
}

TEST(StepInBackwardHookTest, NobodyGetsAPartOfASum) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    int64_t calls = 0;
    setup.root.register_post_accumulate_grad_hook(
        [&calls](const std::string&, const at::Tensor&) { ++calls; });
    setup.root.set_is_last_backward(false);
    backward_in(setup, 0, rank.rank);
    for (const FSDPModule& unit : setup.root.units()) {
      unit.set_all_reduce_hook([](const at::Tensor&) { throw std::runtime_error("no"); });
    }
    setup.root.set_is_last_backward(true);
    EXPECT_THROW(backward_in(setup, 1, rank.rank), std::exception);
    EXPECT_EQ(calls, 0);
  });
}

TEST(StepInBackwardPrefetchTest, GathersThatComeToSteppedUnitsSeeNewValues) {
  run_ranks(2, [](Rank& rank) {
    const auto make_model = [&rank] {
      Sharded setup = make(rank, wide_toy());
      const FSDPModule first = fsdp_module(*setup.model->blocks[0]);
      const FSDPModule last = fsdp_module(*setup.model->blocks[1]);
      first.set_modules_to_backward_prefetch({last});  // it has been stepped, or is about to be
      last.set_reshard_after_backward(false);
      return setup;
    };
    expect_bits_of_a_step_behind(rank, make_model);
  });
}

TEST(StepInBackwardGroupsTest, OptimizersOfPartsOfUnits) {
  run_ranks(2, [](Rank& rank) {
    std::vector<Sharded> setups = {make(rank), make(rank)};
    std::vector<std::shared_ptr<AdamW>> optimizers;
    for (Sharded& setup : setups) {
      for (const AdamWParamGroup& group : groups_of(setup.root)) {
        optimizers.push_back(
            std::make_shared<AdamW>(setup.root, std::vector<AdamWParamGroup>{group}, kDefaults));
      }
    }
    apply_optimizer_in_backward(optimizers[0]);
    apply_optimizer_in_backward(optimizers[1]);
    for (int64_t step = 0; step < 3; ++step) {
      for (Sharded& setup : setups) {
        backward_in(setup, step, rank.rank);
      }
      for (size_t i = 2; i < 4; ++i) {
        optimizers[i]->step();
        optimizers[i]->zero_grad();
      }
      expect_same_tensors(setups[0].root.sharded_parameters(), setups[1].root.sharded_parameters());
      const std::vector<LocalShard> left = setups[0].root.sharded_gradients();
      const std::vector<LocalShard> expected = setups[1].root.sharded_gradients();
      for (size_t i = 0; i < left.size(); ++i) {
        EXPECT_EQ(left[i].local.defined(), left[i].fqn == "embedding") << left[i].fqn;
        EXPECT_EQ(expected[i].local.defined(), left[i].local.defined());
        if (left[i].local.defined()) {
          EXPECT_TRUE(at::equal(left[i].local, expected[i].local));
        }
      }
    }
  });
}

int64_t groups_with_gradient(const FSDPModule& root) {
  int64_t count = 0;
  for (const FSDPModule& unit : root.units()) {
    for (const auto& group : unit.state()->groups()) {
      count += group->gradient().defined() ? 1 : 0;
    }
  }
  return count;
}

TEST(StepInBackwardMemoryTest, FewUnitsHaveGradientsAtATime) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.blocks = 8;
    Sharded setup = make(rank, config);
    int64_t most = 0;
    // Ahead of the optimizer, which drops them.
    RemovableHandle handle = setup.root.register_post_accumulate_grad_hook(
        [&most, &setup](const std::string&, const at::Tensor&) {
          most = std::max(most, groups_with_gradient(setup.root));
        });
    const Training training = start(setup, true);
    backward_in(setup, 0, rank.rank);
    const int64_t allocations = runtime_counters(setup.root).slot_allocations;
    backward_in(setup, 1, rank.rank);
    EXPECT_EQ(runtime_counters(setup.root).slot_allocations, allocations);
    EXPECT_GE(most, 1);
    EXPECT_LE(most, 2);
    handle.remove();
  });
}

TEST(StepInBackwardEndTest, StopsWhenItIsRemovedOrGone) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    auto optimizer = std::make_shared<AdamW>(setup.root, fsdp::AdamWOptions{});
    RemovableHandle handle = apply_optimizer_in_backward(optimizer);
    handle.remove();
    handle.remove();
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(setup.root.sharded_gradients()[0].local.defined());
    EXPECT_EQ(optimizer->step_count(), 0);
    optimizer->zero_grad();
    handle = apply_optimizer_in_backward(optimizer);
    optimizer.reset();
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(setup.root.sharded_gradients()[0].local.defined());
    const ParamGroup& group = *setup.root.units()[1].state()->groups()[0];
    EXPECT_TRUE(group.has_gradient_users());
    handle.remove();
    EXPECT_FALSE(group.has_gradient_users());
  });
}

TEST(StepInBackwardMisuseTest, IsRefused) {
  run_ranks(2, [](Rank& rank) {
    EXPECT_NE(refusal([] { apply_optimizer_in_backward(nullptr); }).find("is null"),
              std::string::npos);
    Training training = start(make(rank), true);
    EXPECT_NE(refusal([&] { apply_optimizer_in_backward(training.optimizer); }).find("already"),
              std::string::npos);
    GradScaler scaler;
    scaler.scale(loss(training.setup.model, 0, rank.rank)).backward();
    EXPECT_NE(refusal([&] { scaler.step(*training.optimizer); }).find("scaled loss"),
              std::string::npos);
  });
}

/// Three units; `again` is called in backward when the last one has been stepped.
struct Again : torch::nn::Module {
  Again() {
    for (size_t i = 0; i < 3; ++i) {
      lines.emplace_back(std::make_shared<ToyBlock>(ToyConfig{}));
      register_module("line" + std::to_string(i), lines.back().ptr());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor first = lines[0](x);
    first.register_hook([this](const at::Tensor&) {
      if (again) {
        again();
      }
    });
    return lines[2](lines[1](first));
  }
  std::vector<Unit<ToyBlock>> lines;
  std::function<void()> again;
};

TEST(StepInBackwardMisuseTest, AUnitThatIsUsedAgainIsNamed) {
  run_ranks(2, [](Rank& rank) {
    Unit<Again> model(std::make_shared<Again>());
    for (const Unit<ToyBlock>& line : model->lines) {
      fully_shard(line.ptr(), {.mesh = rank.mesh});
    }
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    root.init_parameters(initialise);
    const auto optimizer = std::make_shared<AdamW>(root, fsdp::AdamWOptions{});
    apply_optimizer_in_backward(optimizer);
    const at::Tensor x = at::ones({2, 15});
    model->again = [&] { model->lines[2](x); };
    const at::Tensor result = model(x);
    EXPECT_NE(refusal([&] { result.sum().backward(); }).find("line2"), std::string::npos);
    // One unit has done the step, and others have not.
    EXPECT_NE(refusal([&] { optimizer->step(); }).find("in the middle"), std::string::npos);
    model->again = nullptr;
    optimizer->zero_grad();
    optimizer->set_step_count(1);
    model(x).sum().backward();
    EXPECT_EQ(optimizer->step_count(), 2);
  });
}

}  // namespace
}  // namespace fsdp::testing
