// The windows through which the ranks of a host read each other's shards in place. That no read is
// torn, whatever the order of events, is shown for the transport.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "fsdp_runtime/plan/memory_plan.h"
#include "fsdp_runtime/src/engine/module_state.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

at::Tensor initial(const std::string& fqn, const at::Tensor& like) {
  at::Tensor whole = at::empty(like.sizes());
  initialise(fqn, whole);
  return whole;
}

TEST(WindowTest, UnshardedParametersTakeNoMemory) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    run_ranks(2, [compute](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.param_dtype = compute;
      Sharded setup = make(rank, wide_toy(), options);
      AdamW optimizer(setup.root, {});
      std::vector<plan::GroupMemory> groups;
      for (int step = 0; step < 3; ++step) {
        rank.comm->clear();
        loss(setup.model, step, rank.rank).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      const auto bytes = static_cast<int64_t>(c10::elementSize(compute));
      for (int i = 0; i < 3; ++i) {  // the forward's gathers: root first
        groups.push_back({.unit = i,
                          .numel = rank.comm->records()[static_cast<size_t>(i)].numel,
                          .ranks = 2,
                          .compute_bytes = bytes,
                          .reduce_bytes = bytes,
                          .is_windowed = true,
                          .reduces_to_slot = compute != at::kFloat});
      }
      const plan::MemoryPlan plan = plan::plan_memory(groups);
      EXPECT_EQ(plan.parameter_slot_bytes, 0);
      EXPECT_EQ(runtime_counters(setup.root).slot_bytes, plan.gradient_slot_bytes);
    });
  }
}

TEST(WindowTest, WhatIsWrittenOverAGatheredParameterStaysWithTheRankUntilItIsResharded) {
  run_ranks(3, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy());
    const at::Tensor up = setup.model->blocks[0]->up;
    FSDPModule unit = fsdp_module(*setup.model->blocks[0]);
    const at::Tensor before = initial("block0.up", up);
    unit.unshard();
    if (rank.rank == 1) {
      float* raw = static_cast<float*>(up.data_ptr());  // nothing notices that
      std::fill(raw, raw + up.numel(), -7.0F);
    }
    rank.comm->barrier();
    EXPECT_TRUE(at::equal(up.detach(), rank.rank == 1 ? at::full_like(before, -7) : before));
    unit.reshard();
    unit.unshard();
    EXPECT_TRUE(at::equal(up.detach(), before));
    unit.reshard();
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block0.up"), before));
  });
}

using Write = std::function<void(Sharded& setup, AdamW& optimizer)>;

/// Rank 1 still reads the parameters when the others come to write theirs.
void expect_that_writers_wait(const Write& write) {
  std::atomic<bool> has_read{false};
  run_ranks(3, [&](Rank& rank) {
    Sharded setup = make(rank, wide_toy());
    AdamW optimizer(setup.root, {});
    setup.root.set_requires_gradient_sync(false);
    loss(setup.model, 0, rank.rank).backward();
    setup.root.set_requires_gradient_sync(true);
    loss(setup.model, 1, rank.rank).backward();
    FSDPModule unit = fsdp_module(*setup.model->blocks[1]);
    unit.unshard();
    rank.comm->barrier();
    if (rank.rank == 1) {
      const at::Tensor down = setup.model->blocks[1]->down.detach();
      for (int turn = 0; turn < 50; ++turn) {
        ASSERT_TRUE(at::equal(down, initial("block1.down", down)));
      }
      has_read = true;
    }
    write(setup, optimizer);
    EXPECT_TRUE(has_read);
  });
}

TEST(WindowTest, OptimizerWaitsForReaders) {
  expect_that_writers_wait([](Sharded&, AdamW& optimizer) { optimizer.step(); });
}

TEST(WindowTest, InitialisationWaitsForReaders) {
  expect_that_writers_wait([](Sharded& setup, AdamW&) {
    setup.root.init_parameters([](const std::string&, at::Tensor full) { full.zero_(); });
  });
}

TEST(WindowTest, LoaderThatAsksWaitsForReaders) {
  expect_that_writers_wait([](Sharded& setup, AdamW&) {
    setup.root.prepare_to_write();
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      shard.local.zero_();
    }
  });
}

TEST(WindowTest, EvaluationSeesWhatWasWrittenAfterTheOneBefore) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    run_ranks(4, [compute](Rank& rank) {
      FullyShardOptions options;
      options.mp_policy.param_dtype = compute;
      Sharded setup = make(rank, wide_toy(), options);
      at::NoGradGuard no_grad;
      float last = 0;
      for (int round = 0; round < 4; ++round) {
        const float value = loss(setup.model, 0, 0).item<float>();
        EXPECT_NE(value, last);
        last = value;
        // Without asking: after a forward without grad mode nobody reads.
        for (const LocalShard& shard : setup.root.sharded_parameters()) {
          shard.local.mul_(0.5);
        }
      }
      at::Tensor all = at::empty({rank.size});
      rank.comm->all_gather_into(all, at::full({1}, last), Lane::kGather)->wait();
      EXPECT_TRUE(all.eq(last).all().item<bool>());
    });
  }
}

// In mixed precision peers read a copy of the shard.
void expect_unsharded(Sharded& setup, const std::string& fqn, const at::Tensor& unsharded) {
  EXPECT_TRUE(at::equal(unsharded.detach(), setup.root.full_parameter(fqn).to(at::kBFloat16)))
      << fqn << " is not what the shards are";
}

void expect_unit_unsharded(Sharded& setup) {
  FSDPModule unit = fsdp_module(*setup.model->blocks[0]);
  unit.unshard();
  expect_unsharded(setup, "block0.up", setup.model->blocks[0]->up);
  unit.reshard();
}

FullyShardOptions in_bfloat16() {
  FullyShardOptions options;
  options.mp_policy.param_dtype = at::kBFloat16;
  return options;
}

/// The copies of this rank's shards that peers read.
std::vector<std::pair<at::Tensor, at::Tensor>> shards_and_copies(const FSDPModule& root) {
  std::vector<std::pair<at::Tensor, at::Tensor>> all;
  for (const FSDPModule& unit : root.units()) {
    for (const std::shared_ptr<ParamGroup>& group : unit.state()->groups()) {
      all.emplace_back(group->store().shard(), group->store().copy_for_peers());
    }
  }
  return all;
}

TEST(WindowTest, TheOptimizerWritesTheCopiesThatPeersRead) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    for (int step = 0; step < 3; ++step) {
      setup.model->blocks[0]->use_spare = step == 1;  // some parameters keep their value
      loss(setup.model, step, rank.rank).backward();
      optimizer.step();
      for (const auto& [shard, copy] : shards_and_copies(setup.root)) {
        ASSERT_TRUE(copy.defined());
        EXPECT_TRUE(at::equal(copy, shard.to(at::kBFloat16))) << "step " << step;
      }
      optimizer.zero_grad();
    }
  });
}

TEST(WindowTest, WhatTheOptimizerHasWrittenIsNotCopiedAgain) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    const auto has_mark = [&] {  // in what the next forward gathers
      loss(setup.model, 0, rank.rank).backward();
      FSDPModule unit = fsdp_module(*setup.model->blocks[0]);
      unit.unshard();
      const bool has = setup.model->blocks[0]->up.detach().eq(77).any().item<bool>();
      unit.reshard();
      rank.comm->barrier();
      return has;
    };
    const auto step_and_mark = [&] {
      optimizer.step();
      rank.comm->barrier();
      for (const auto& [shard, copy] : shards_and_copies(setup.root)) {
        copy.fill_(77);
      }
      rank.comm->barrier();
    };
    EXPECT_FALSE(has_mark());
    step_and_mark();
    EXPECT_TRUE(has_mark());
    step_and_mark();
    setup.root.sharded_parameters();  // somebody had them, and may have written
    EXPECT_FALSE(has_mark());
    {
      const std::vector<LocalShard> shards = setup.root.sharded_parameters();  // may be written
      for (int step = 0; step < 2; ++step) {
        step_and_mark();
        EXPECT_FALSE(has_mark());
      }
    }
    has_mark();  // nobody has them any more when this makes copies
    step_and_mark();
    EXPECT_TRUE(has_mark());
  });
}

TEST(WindowTest, WritesThatNobodySeesAreCopied) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    const std::vector<LocalShard> kept = setup.root.sharded_parameters();
    for (int step = 0; step < 3; ++step) {
      loss(setup.model, step, rank.rank).backward();
      optimizer.step();
      optimizer.zero_grad();
      const std::vector<LocalShard> shards = step == 2 ? kept : setup.root.sharded_parameters();
      for (const LocalShard& shard : shards) {
        float* raw = static_cast<float*>(shard.local.data_ptr());
        std::fill(raw, raw + shard.local.numel(), 0.25F * static_cast<float>(step + 1));
      }
      at::NoGradGuard no_grad;
      loss(setup.model, step, rank.rank);
      expect_unit_unsharded(setup);
    }
  });
}

TEST(WindowTest, WritesBehindTheOptimizerAreCopied) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    const auto halve = [](const std::vector<LocalShard>& shards) {
      for (const LocalShard& shard : shards) {
        shard.local.mul_(0.5);
      }
    };
    const std::vector<LocalShard> kept = setup.root.sharded_parameters();
    for (const bool keeps : {true, false}) {
      loss(setup.model, 0, rank.rank).backward();
      optimizer.step();
      halve(keeps ? kept : setup.root.sharded_parameters());
      expect_unit_unsharded(setup);
      setup.root.prepare_to_write();
      halve(setup.root.sharded_parameters());
      optimizer.zero_grad();
      optimizer.step();  // updates nothing
      expect_unit_unsharded(setup);
    }
  });
}

// Eight gathers, whether a unit has one or two of them.
TEST(WindowTest, GathersRunAheadWhileTheyTakeNoMemory) {
  for (const auto& [compute, is_partly_frozen] : std::vector<std::pair<at::ScalarType, bool>>{
           {at::kFloat, false}, {at::kBFloat16, false}, {at::kFloat, true}}) {
    run_ranks(2, [compute = compute, is_partly_frozen = is_partly_frozen](Rank& rank) {
      ToyConfig config = wide_toy();
      config.blocks = 12;
      config.frozen_first_weight = is_partly_frozen;
      const int64_t groups = is_partly_frozen ? 2 : 1;  // of a block
      FullyShardOptions options;
      options.mp_policy.param_dtype = compute;
      Sharded setup = make(rank, config, options);
      loss(setup.model, 0, rank.rank).backward();
      rank.comm->clear();
      setup.model->blocks[0]->fail = true;
      EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
      EXPECT_EQ(count(rank, "all_gather"), 1 + 8 + groups) << "root, ahead of it, of block 0";
      setup.model->blocks[0]->fail = false;
      const at::Tensor tokens = tokens_of(config, 1, rank.rank);
      const at::Tensor logits = setup.model(tokens);
      rank.comm->clear();
      logits.register_hook([&](const at::Tensor&) {
        EXPECT_EQ(count(rank, "all_gather"), 8) << "ahead of the root's backward";
      });
      loss_of(logits, tokens).backward();
      EXPECT_EQ(count(rank, "all_gather"), 12 * groups);
    });
  }
}

TEST(WindowTest, UnitThatIsUnshardedByHandHasWhatTheOptimizerHasWritten) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    expect_unit_unsharded(setup);
    for (int step = 0; step < 2; ++step) {
      loss(setup.model, step, rank.rank).backward();
      expect_unit_unsharded(setup);
      optimizer.step();
      expect_unit_unsharded(setup);
      optimizer.zero_grad();
      setup.root.init_parameters(initialise);
      expect_unit_unsharded(setup);
    }
  });
}

TEST(WindowTest, UnitThatIsUnshardedByHandHasWhatWasWrittenBetweenSteps) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    const auto halve = [&setup] {
      for (const LocalShard& shard : setup.root.sharded_parameters()) {
        shard.local.mul_(0.5);
      }
    };
    for (int step = 0; step < 2; ++step) {
      loss(setup.model, step, rank.rank).backward();
      halve();  // without asking: the backward reduces
      expect_unit_unsharded(setup);
      {
        at::NoGradGuard no_grad;
        loss(setup.model, step, rank.rank);
      }
      halve();
      expect_unit_unsharded(setup);
      setup.root.prepare_to_write();
      halve();
      expect_unit_unsharded(setup);
    }
  });
}

TEST(WindowTest, ForwardOfAUnitAloneSeesWhatTheOptimizerHasWritten) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank, wide_toy(), in_bfloat16());
    AdamW optimizer(setup.root, {});
    const Unit<ToyBlock>& block = setup.model->blocks[0];
    const at::Tensor input = at::ones({2, setup.model->config.width}, at::kBFloat16);
    const auto output = [&] {
      at::NoGradGuard no_grad;
      return block(input);
    };
    loss(setup.model, 0, rank.rank).backward();
    const at::Tensor before = output();
    optimizer.step();
    EXPECT_FALSE(at::equal(output(), before));
  });
}

TEST(WindowTest, ModelsComeAndGo) {
  run_ranks(2, [](Rank& rank) {
    for (int round = 0; round < 3; ++round) {
      Sharded setup = make(rank, wide_toy());
      if (rank.rank == 0) {
        loss(setup.model, 0, 0).backward();
        continue;  // this rank's shards go while the other may still read them
      }
      const at::Tensor value = loss(setup.model, 0, 0);
      EXPECT_TRUE(value.isfinite().item<bool>());
      value.backward();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
