#include <fsdp/counters.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "fsdp_runtime/plan/memory_plan.h"
#include "tests/unit/base/address_sanitizer.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(ScheduleTest, CollectivesPerStepAreAsFewAsTheModeAllows) {
  for (const auto& [reshard, gathers] : std::vector<std::pair<std::optional<bool>, int64_t>>{
           {std::nullopt, 4 + 3}, {false, 4}, {true, 4 + 4}}) {
    run_ranks(2, [&, reshard = reshard, gathers = gathers](Rank& rank) {
      Sharded setup =
          make(rank, {}, {.mesh = nullptr, .reshard_after_forward = reshard, .mp_policy = {}});
      for (int step = 0; step < 3; ++step) {
        rank.comm->clear();
        loss(setup.model, step, rank.rank).backward();
        EXPECT_EQ(count(rank, "all_gather"), gathers) << "step " << step;
        EXPECT_EQ(count(rank, "reduce_scatter"), 4) << "step " << step;
        EXPECT_EQ(static_cast<int64_t>(rank.comm->records().size()), gathers + 4);
      }
    });
  }
}

TEST(ScheduleTest, WorldOfOneNeedsNoCollectiveAndNoSlot) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    loss(setup.model, 0, 0).backward();
    EXPECT_TRUE(rank.comm->records().empty());
    EXPECT_EQ(runtime_counters(setup.root).slot_bytes, 0);
  });
}

TEST(ScheduleTest, AllRanksIssueTheSameSequence) {
  std::vector<std::vector<CollectiveRecord>> records(4);
  run_ranks(4, [&](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    for (int step = 0; step < 3; ++step) {
      // What ranks use differs; what they exchange does not.
      setup.model->blocks[1]->use_spare = rank.rank == step;
      loss(setup.model, step, rank.rank).backward();
      clip_grad_norm_(setup.root, 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    records[rank.rank] = rank.comm->records();
  });
  EXPECT_FALSE(records[0].empty());
  for (const auto& other : records) {
    EXPECT_EQ(other, records[0]);
  }
}

TEST(ScheduleTest, SteadyStateAllocatesNothingAndRepeatsAddresses) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<std::vector<const void*>> addresses;
    int64_t allocations = 0;
    for (int step = 0; step < 4; ++step) {
      std::vector<const void*> seen;
      for (const Unit<ToyBlock>& block : setup.model->blocks) {
        block->seen_at = &seen;
      }
      at::Tensor result = loss(setup.model, step, rank.rank);
      seen.push_back(setup.model->embedding.const_data_ptr());
      result.backward();
      addresses.push_back(seen);
      if (step == 1) {
        allocations = runtime_counters(setup.root).slot_allocations;
      }
    }
    EXPECT_EQ(runtime_counters(setup.root).slot_allocations, allocations);
    EXPECT_EQ(addresses[2].size(), 4u);
    EXPECT_EQ(addresses[2], addresses[3]);
  });
}

TEST(ScheduleTest, ArenaIsAsLargeAsThePlanSays) {
  for (const auto& [reshard, accumulates] : std::vector<std::pair<std::optional<bool>, bool>>{
           {std::nullopt, false}, {true, false}, {std::nullopt, true}}) {
    run_ranks(2, [&, reshard = reshard, accumulates = accumulates](Rank& rank) {
      Sharded setup =
          make(rank, {}, {.mesh = nullptr, .reshard_after_forward = reshard, .mp_policy = {}});
      std::vector<plan::GroupMemory> groups;
      for (int step = 0; step < 3; ++step) {
        rank.comm->clear();
        loss(setup.model, step, rank.rank).backward();
        if (!accumulates) {
          AdamW(setup.root, {}).zero_grad();
        }
      }
      for (int i = 0; i < 4; ++i) {  // the forward's gathers: root first
        groups.push_back({.unit = i,
                          .numel = rank.comm->records()[i].numel,
                          .ranks = 2,
                          .stays_gathered = i == 0});  // a reduce-scatter adds to the gradient
      }
      const plan::MemoryPlan plan = plan::plan_memory(groups);
      EXPECT_EQ(runtime_counters(setup.root).slot_bytes,
                plan.parameter_slot_bytes + plan.gradient_slot_bytes);
    });
  }
}

TEST(ScheduleTest, GathersRunOneUnitAhead) {
  run_ranks(2, [](Rank& rank) {
    FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    std::map<int64_t, std::string> names;
    for (size_t i = 0; i < model->blocks.size(); ++i) {
      // A further parameter of its own size makes each block's group recognisable by its size.
      model->blocks[i]->register_parameter("mark", at::zeros({64 * 4 * static_cast<int64_t>(i)}));
      fully_shard(model->blocks[i].ptr(), options);
    }
    FSDPModule root = fully_shard(model.ptr(), options);
    root.init_parameters(initialise);
    rank.comm->clear();
    loss(model, 0, rank.rank).backward();  // nothing is predicted in the first forward
    std::vector<std::string> order;
    names[rank.comm->records()[0].numel] = "root";
    for (int i = 0; i < 3; ++i) {
      names[rank.comm->records()[1 + i].numel] = std::to_string(i);
    }
    ASSERT_EQ(names.size(), 4u);
    rank.comm->clear();
    const auto take_records = [&] {
      for (const CollectiveRecord& record : rank.comm->records()) {
        order.push_back((record.operation == "all_gather" ? "gather " : "reduce ") +
                        names[record.numel]);
      }
      rank.comm->clear();
    };
    const at::Tensor tokens = tokens_of({}, 1, rank.rank);
    const at::Tensor logits = model(tokens);
    logits.register_hook([&](const at::Tensor&) {
      take_records();
      order.emplace_back("head");
    });
    loss_of(logits, tokens).backward();
    take_records();
    EXPECT_EQ(order, (std::vector<std::string>{
                         "gather root", "gather 0", "gather 1", "gather 2",       // forward
                         "gather 2", "head", "gather 1", "reduce 2", "gather 0",  // backward
                         "reduce 1", "reduce 0", "reduce root"}));
  });
}

TEST(ScheduleTest, ExplicitPrefetchReplacesThePrediction) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const std::vector<FSDPModule> units = setup.root.units();
    ASSERT_EQ(units.size(), 4u);
    setup.root.set_modules_to_forward_prefetch({units[1], units[2]});
    setup.root.unshard();
    {
      // With a list, units are gathered in the very first forward, where nothing is predicted yet.
      setup.model->blocks[0]->fail = true;
      EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
      EXPECT_EQ(count(rank, "all_gather"), 3);
      setup.model->blocks[0]->fail = false;
    }
    rank.comm->clear();
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(count(rank, "all_gather"), 7);
  });
}

TEST(ScheduleTest, ForwardWithoutGradLeavesNothingGathered) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (int round = 0; round < 2; ++round) {
      at::NoGradGuard no_grad;
      EXPECT_EQ(loss(setup.model, 0, rank.rank).item<float>(),
                loss(plain.model, 0, rank.rank).item<float>());
    }
    EXPECT_EQ(count(rank, "all_gather"), 8);
    EXPECT_EQ(count(rank, "reduce_scatter"), 0);
    for (const LocalShard& slice : setup.root.sharded_gradients()) {
      EXPECT_FALSE(slice.local.defined());
    }
  });
}

TEST(ScheduleTest, KeepingParametersBetweenMicrobatchesSavesGathers) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup =
        make(rank, {}, {.mesh = nullptr, .reshard_after_forward = false, .mp_policy = {}});
    setup.root.set_reshard_after_backward(false);
    loss(setup.model, 0, rank.rank).backward();
    loss(setup.model, 1, rank.rank).backward();
    EXPECT_EQ(count(rank, "all_gather"), 4);
    AdamW optimizer(setup.root, {});
    optimizer.step();
    loss(setup.model, 2, rank.rank).backward();
    EXPECT_EQ(count(rank, "all_gather"), 8) << "stepping makes what was gathered out of date";
  });
}

TEST(ScheduleTest, DestroyedModelsReleaseTheirUnits) {
  run_ranks(1, [](Rank& rank) {
    std::vector<std::weak_ptr<ModuleState>> states;
    at::Tensor last_loss;
    {
      // With a cast the world of one has slots and a collective, too.
      FullyShardOptions options;
      options.mp_policy.param_dtype = at::kBFloat16;
      Sharded setup = make(rank, {}, options);
      loss(setup.model, 0, rank.rank).backward();
      last_loss = loss(setup.model, 1, rank.rank);  // its graph outlives the model
      for (const FSDPModule& unit : setup.root.units()) {
        states.push_back(unit.state());
      }
    }
    EXPECT_EQ(states.size(), 4u);
    last_loss.reset();
    for (const auto& state : states) {
      EXPECT_TRUE(state.expired());
    }
  });
}

TEST(ScheduleTest, UnshardAndReshardByHand) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.root.unshard();
    setup.root.unshard();
    at::Tensor expected = at::empty({29, 15});
    initialise("embedding", expected);
    EXPECT_TRUE(at::equal(setup.model->embedding, expected));
    EXPECT_EQ(setup.model->embedding.data_ptr(), setup.model->head.data_ptr());
    setup.root.reshard();
    setup.root.reshard();
    EXPECT_EQ(count(rank, "all_gather"), 1);
  });
}

// Of the parameter itself it is an error (misuse_test.cc), which a view of it does not know of.
TEST(ScheduleDeathTest, TouchingAViewOfAReshardedParameterIsAFault) {
  const auto touch = [] {
    run_ranks(1, [](Rank& rank) {
      Sharded setup = make(rank);
      setup.root.unshard();
      const at::Tensor view = setup.model->embedding.detach();
      setup.root.reshard();
      view.sum();
    });
  };
  if constexpr (fsdprun::kHasAddressSanitizer) {
    EXPECT_DEATH(touch(),
                 "parameter embedding was read or written that is sharded now, and not "
                 "gathered(.|\n)*AddressSanitizer: SEGV");
  } else {
    EXPECT_EXIT(touch(), ::testing::KilledBySignal(SIGSEGV),
                "parameter embedding was read or written that is sharded now, and not gathered");
  }
}

/// One that recovers, as that of a runtime which faults on purpose.
void make_readable(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(info->si_addr) / page * page;
  ::mprotect(reinterpret_cast<void*>(begin), page, PROT_READ);
}

void touch_with_a_handler_that_recovers() {
  struct sigaction action {};
  action.sa_sigaction = make_readable;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.root.unshard();
    const at::Tensor view = setup.model->embedding.detach();
    setup.root.reshard();
    const auto* data = static_cast<const volatile float*>(view.const_data_ptr());
    ::close(STDERR_FILENO);  // so that what the explanation calls fails
    errno = ERANGE;
    const float read = data[0];
    ::_exit(errno == ERANGE && read == 0 ? 0 : 1);
  });
}

// A process of its own, in which nobody has been there before this handler.
TEST(ScheduleDeathTest, ExplanationOfAFaultKeepsErrno) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(touch_with_a_handler_that_recovers(), ::testing::ExitedWithCode(0), "");
  GTEST_FLAG_SET(death_test_style, "fast");
}

}  // namespace
}  // namespace fsdp::testing
