#include <fsdp/counters.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>

#include "fsdp_runtime/plan/memory_plan.h"
#include "tests/unit/fsdp_runtime/engine/plain_training.h"
#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {
namespace {

using Gradients = std::map<std::string, at::Tensor>;

struct Sharded {
  Unit<ToyModel> model;
  FSDPModule root;
};

Sharded make(const Rank& rank, const ToyConfig& config = {}, FullyShardOptions options = {}) {
  options.mesh = rank.mesh;
  Sharded setup{make_sharded(config, options), {}};
  setup.root = fsdp_module(*setup.model);
  setup.root.init_parameters(initialise);
  return setup;
}

at::Tensor loss(const Unit<ToyModel>& model, int64_t step, int64_t rank) {
  const at::Tensor tokens = tokens_of(model->config, step, rank);
  return loss_of(model(tokens), tokens);
}

// This rank's pieces of the gradients against whole ones. Exact unless a bound is given.
void expect_gradients(const FSDPModule& root, const Gradients& expected, double bound = 0) {
  for (const ShardedSlice& slice : root.sharded_gradients()) {
    if (expected.count(slice.fqn) == 0) {
      continue;
    }
    ASSERT_TRUE(slice.local.defined()) << slice.fqn;
    const at::Tensor piece =
        expected.at(slice.fqn).flatten().slice(0, slice.flat_begin, slice.flat_end);
    if (piece.numel() > 0) {
      EXPECT_LE((slice.local - piece).abs().max().item<double>(), bound) << slice.fqn;
    }
  }
}

int64_t count(const Rank& rank, const std::string& operation) {
  const auto& records = rank.comm->records();
  return std::count_if(records.begin(), records.end(),
                       [&](const auto& record) { return record.operation == operation; });
}

TEST(EngineTest, CollectivesPerStepAreAsFewAsTheModeAllows) {
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

TEST(EngineTest, WorldOfOneNeedsNoCollectiveAndNoSlot) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    loss(setup.model, 0, 0).backward();
    EXPECT_TRUE(rank.comm->records().empty());
    EXPECT_EQ(runtime_counters(setup.root).slot_bytes, 0);
  });
}

TEST(EngineTest, AllRanksIssueTheSameSequence) {
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

TEST(EngineTest, SteadyStateAllocatesNothingAndRepeatsAddresses) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<std::vector<const void*>> addresses;
    int64_t allocations = 0;
    for (int step = 0; step < 4; ++step) {
      std::vector<const void*> seen;
      at::Tensor result = loss(setup.model, step, rank.rank);
      seen.push_back(setup.model->embedding.const_data_ptr());
      result.backward();
      addresses.push_back(seen);
      if (step == 1) {
        allocations = runtime_counters(setup.root).slot_allocations;
      }
    }
    EXPECT_EQ(runtime_counters(setup.root).slot_allocations, allocations);
    EXPECT_EQ(addresses[2], addresses[3]);
  });
}

TEST(EngineTest, ArenaIsAsLargeAsThePlanSays) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<plan::GroupMemory> groups;
    rank.comm->clear();
    for (int step = 0; step < 3; ++step) {
      rank.comm->clear();
      loss(setup.model, step, rank.rank).backward();
      AdamW(setup.root, {}).zero_grad();  // adding to a gradient takes further memory
    }
    for (int i = 0; i < 4; ++i) {  // the forward's gathers: root first
      groups.push_back({.numel = rank.comm->records()[i].numel, .stays_gathered = i == 0});
    }
    const plan::MemoryPlan plan = plan::plan_memory(groups, 2);
    EXPECT_EQ(runtime_counters(setup.root).slot_bytes,
              plan.parameter_slot_bytes + plan.gradient_slot_bytes);
  });
}

TEST(EngineTest, GathersRunOneUnitAhead) {
  run_ranks(2, [](Rank& rank) {
    FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    std::map<int64_t, std::string> names;
    for (size_t i = 0; i < model->blocks.size(); ++i) {
      // A further parameter of its own size makes the blocks' groups tell-tale.
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
    at::Tensor second = loss(model, 1, rank.rank);
    second.backward();
    for (const CollectiveRecord& record : rank.comm->records()) {
      order.push_back((record.operation == "all_gather" ? "gather " : "reduce ") +
                      names[record.numel]);
    }
    EXPECT_EQ(order, (std::vector<std::string>{
                         "gather root", "gather 0", "gather 1", "gather 2",           // forward
                         "gather 2", "gather 1", "reduce 2", "gather 0", "reduce 1",  // backward
                         "reduce 0", "reduce root"}));
  });
}

TEST(EngineTest, ExplicitPrefetchReplacesThePrediction) {
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

TEST(EngineTest, ParametersUnusedOnSomeRanksAreReducedAsZeros) {
  run_ranks(3, [](Rank& rank) {
    Sharded setup = make(rank);
    setup.model->blocks[0]->use_spare = rank.rank == 2;
    PlainTraining plain({}, 3, {});
    const Gradients expected = plain.gradients([&](int64_t r) {
      plain.model->blocks[0]->use_spare = r == 2;
      return loss(plain.model, 0, r);
    });
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_GT(expected.at("block0.spare").abs().max().item<double>(), 0);
    EXPECT_EQ(expected.at("block1.spare").abs().max().item<double>(), 0);
    expect_gradients(setup.root, expected, 1e-7);
  });
}

TEST(EngineTest, ForwardWithoutGradLeavesNothingGathered) {
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
    for (const ShardedSlice& slice : setup.root.sharded_gradients()) {
      EXPECT_FALSE(slice.local.defined());
    }
  });
}

TEST(EngineTest, TwoForwardsBeforeOneBackward) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    const auto both = [](const Unit<ToyModel>& model, int64_t r) {
      return loss(model, 0, r) + loss(model, 1, r);
    };
    both(setup.model, rank.rank).backward();
    expect_gradients(setup.root, plain.gradients([&](int64_t r) { return both(plain.model, r); }));
  });
}

TEST(EngineTest, TwoForwardsThenTwoBackwards) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    at::Tensor first = loss(setup.model, 0, rank.rank);
    at::Tensor second = loss(setup.model, 1, rank.rank);
    {
      at::NoGradGuard no_grad;  // a reference pass in between, as preference training does
      loss(setup.model, 2, rank.rank);
    }
    second.backward();
    first.backward();
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); });
    for (const auto& [fqn, gradient] :
         plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); })) {
      expected[fqn] = expected[fqn] + gradient;
    }
    expect_gradients(setup.root, expected);
  });
}

TEST(EngineTest, MicrobatchesWithoutSyncAreReducedOnce) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (int pass = 0; pass < 2; ++pass) {  // the second pass reuses the slots of the first
      rank.comm->clear();
      setup.root.set_requires_gradient_sync(false);
      loss(setup.model, 0, rank.rank).backward();
      EXPECT_EQ(count(rank, "reduce_scatter"), 0);
      setup.root.set_requires_gradient_sync(true);
      loss(setup.model, 1, rank.rank).backward();
      EXPECT_EQ(count(rank, "reduce_scatter"), 4);
      AdamW(setup.root, {}).zero_grad();
    }
    setup.root.set_requires_gradient_sync(false);
    loss(setup.model, 0, rank.rank).backward();
    setup.root.set_requires_gradient_sync(true);
    loss(setup.model, 1, rank.rank).backward();
    const Gradients expected = plain.gradients(
        [&](int64_t r) { return loss(plain.model, 0, r) + loss(plain.model, 1, r); });
    // The reference adds the microbatches inside autograd, in another order.
    expect_gradients(setup.root, expected, 1e-7);
  });
}

TEST(EngineTest, MicrobatchesWithSyncAddUp) {
  for (int64_t ranks : {1, 2}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      PlainTraining plain({}, rank.size, {});
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      for (const auto& [fqn, gradient] :
           plain.gradients([&](int64_t r) { return loss(plain.model, 1, r); })) {
        expected[fqn] = expected[fqn] + gradient;
      }
      loss(setup.model, 0, rank.rank).backward();
      loss(setup.model, 1, rank.rank).backward();
      expect_gradients(setup.root, expected);
    });
  }
}

TEST(EngineTest, KeepingParametersBetweenMicrobatchesSavesGathers) {
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

TEST(EngineTest, StepAfterForwardWithoutBackwardIsSeenByTheNextForward) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    const float before = loss(setup.model, 0, rank.rank).item<float>();  // leaves the root gathered
    optimizer.step();
    at::NoGradGuard no_grad;
    EXPECT_LT(loss(setup.model, 0, rank.rank).item<float>(), before);
  });
}

TEST(EngineTest, GraphRunBackwardTwiceGivesTheGradientTwice) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    for (auto& [fqn, gradient] : expected) {
      gradient = gradient * 2;
    }
    at::Tensor result = loss(setup.model, 0, rank.rank);
    result.backward({}, /*retain_graph=*/true);
    result.backward();
    expect_gradients(setup.root, expected);
  });
}

TEST(EngineTest, ForwardThatThrowsLeavesTheModelUsable) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (int step = 0; step < 2; ++step) {
      loss(setup.model, 1, rank.rank).backward();
      setup.model->blocks[1]->fail = true;
      EXPECT_THROW(loss(setup.model, 0, rank.rank), c10::Error);
      setup.model->blocks[1]->fail = false;
      AdamW(setup.root, {}).zero_grad();
    }
    loss(setup.model, 0, rank.rank).backward();
    expect_gradients(setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

TEST(EngineTest, BackwardThatThrowsLeavesTheModelUsable) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.checkpointing = ToyConfig::Checkpointing::kAroundUnit;
    Sharded setup = make(rank, config);
    PlainTraining plain(config, 2, {});
    for (int step = 0; step < 2; ++step) {
      at::Tensor failing = loss(setup.model, 0, rank.rank);
      setup.model->blocks[1]->fail = true;  // the recomputation of block 1 throws
      EXPECT_THROW(failing.backward(), c10::Error);
      setup.model->blocks[1]->fail = false;
    }
    AdamW(setup.root, {}).zero_grad();
    at::Tensor result = loss(setup.model, 0, rank.rank);
    AdamW(setup.root, {}).zero_grad();  // the failed backward's reductions count until dropped
    result.backward();
    expect_gradients(setup.root,
                     plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); }));
  });
}

TEST(EngineTest, DestroyedModelsReleaseTheirUnits) {
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

TEST(EngineDeathTest, TouchingAReshardedParameterIsAFault) {
  const auto touch = [] {
    run_ranks(1, [](Rank& rank) {
      Sharded setup = make(rank);
      setup.model->embedding.sum();
    });
  };
  EXPECT_DEATH(touch(), "");
}

TEST(EngineTest, UnshardAndReshardByHand) {
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

TEST(EngineTest, SlicesAreNamedFromTheHandleAndWriteThrough) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<std::string> names;
    for (const ShardedSlice& slice : setup.root.sharded_parameters()) {
      names.push_back(slice.fqn);
      at::NoGradGuard no_grad;
      slice.local.fill_(0.5);
    }
    const std::vector<std::string> expected = {
        "embedding",    "gain",        "block0.up",   "block0.bias", "block0.down",
        "block0.spare", "block1.up",   "block1.bias", "block1.down", "block1.spare",
        "block2.up",    "block2.bias", "block2.down", "block2.spare"};
    EXPECT_EQ(names, expected);
    EXPECT_EQ(fsdp_module(*setup.model->blocks[1]).sharded_parameters()[0].fqn, "up");
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block2.down"), at::full({15, 33}, 0.5)));
    EXPECT_THROW(setup.root.full_parameter("block9.down"), c10::Error);
  });
}

TEST(EngineTest, MixedPrecisionComputesInBfloat16AndReducesInFloat) {
  run_ranks(2, [](Rank& rank) {
    FullyShardOptions options;
    options.mp_policy = {.param_dtype = at::kBFloat16,
                         .reduce_dtype = at::kFloat,
                         .output_dtype = std::nullopt,
                         .cast_forward_inputs = true};
    Sharded setup = make(rank, {}, options);
    PlainTraining plain({}, 2, {});
    for (auto& param : plain.model->named_parameters()) {
      param.value().set_data(param.value().to(at::kBFloat16));
    }
    const auto bfloat_gradient = [&](int64_t r) {
      plain.model->zero_grad();
      loss(plain.model, 0, r).backward();
      Gradients gradients;
      for (auto& param : plain.model->named_parameters()) {
        if (param.value().grad().defined()) {
          gradients[param.key()] = param.value().grad().to(at::kFloat);
        }
      }
      return gradients;
    };
    Gradients expected = bfloat_gradient(0);
    for (const auto& [fqn, gradient] : bfloat_gradient(1)) {
      expected[fqn] = (expected[fqn] + gradient) / 2;
    }
    at::Tensor result = loss(setup.model, 0, rank.rank);
    EXPECT_EQ(setup.model->embedding.scalar_type(), at::kBFloat16);
    EXPECT_EQ(result.item<float>(), loss(plain.model, 0, rank.rank).item<float>());
    result.backward();
    EXPECT_EQ(setup.root.sharded_gradients()[0].local.scalar_type(), at::kFloat);
    expect_gradients(setup.root, expected);
    EXPECT_EQ(setup.root.full_parameter("gain").scalar_type(), at::kFloat);
  });
}

TEST(EngineTest, FrozenParametersAreGatheredButNotReduced) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.frozen_first_weight = true;
    Sharded setup = make(rank, config);
    loss(setup.model, 0, rank.rank).backward();
    // Per block: one gather of what trains and one of what is frozen.
    EXPECT_EQ(count(rank, "all_gather"), 1 + 3 * 2 * 2);
    EXPECT_EQ(count(rank, "reduce_scatter"), 4);
    for (const ShardedSlice& slice : setup.root.sharded_gradients()) {
      EXPECT_EQ(slice.local.defined(), !slice.fqn.ends_with(".up")) << slice.fqn;
    }
  });
}

TEST(EngineTest, ClippingMeasuresTheWholeModelAndScales) {
  for (int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [](Rank& rank) {
      Sharded setup = make(rank);
      PlainTraining plain({}, rank.size, {});
      Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
      double square_sum = 0;
      for (const auto& [fqn, gradient] : expected) {
        square_sum += gradient.to(at::kDouble).square().sum().item<double>();
      }
      loss(setup.model, 0, rank.rank).backward();
      rank.comm->clear();
      EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), std::sqrt(square_sum), 1e-6);
      EXPECT_EQ(rank.comm->records().size(), 1u);
      clip_grad_norm_(setup.root, 0.01);
      EXPECT_NEAR(clip_grad_norm_(setup.root, 0).item<double>(), 0.01, 1e-6);
    });
  }
}

TEST(EngineTest, GradientDivideFactorReplacesTheAverage) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    for (FSDPModule unit : setup.root.units()) {
      unit.set_gradient_divide_factor(4);
    }
    Gradients expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    for (auto& [fqn, gradient] : expected) {
      gradient = gradient / 2;
    }
    loss(setup.model, 0, rank.rank).backward();
    expect_gradients(setup.root, expected);
  });
}

TEST(EngineTest, GroupsOfNoDecayParametersDoNotDecay) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    AdamWOptions options;
    options.weight_decay = 0.5;
    options.lr = 0.1;
    options.no_decay = [](const std::string& fqn) { return !fqn.ends_with(".spare"); };
    AdamW optimizer(setup.root, options);
    at::Tensor before = setup.root.full_parameter("block1.spare");
    loss(setup.model, 0, rank.rank).backward();
    optimizer.step();
    // No gradient reaches it, so decay is all that moves it.
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block1.spare"), before * (1 - 0.1 * 0.5)));
    EXPECT_EQ(optimizer.exp_avg().size(), 14u);
    EXPECT_EQ(optimizer.exp_avg_sq()[3].fqn, "block0.bias");
    EXPECT_EQ(optimizer.step_count(), 1);
  });
}

TEST(FullyShardTest, ErrorsNameTheParameterAndTheWayOut) {
  run_ranks(1, [](Rank& rank) {
    const FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    const auto error_of = [](auto call) -> std::string {
      try {
        call();
      } catch (const c10::Error& error) {
        return error.what_without_backtrace();
      }
      return "no error";
    };
    const auto module_with = [](const at::Tensor& tensor) {
      auto module = std::make_shared<torch::nn::Module>("Odd");
      module->register_parameter("odd", tensor, false);
      return module;
    };
    EXPECT_NE(error_of([&] { fully_shard(nullptr, options); }).find("null"), std::string::npos);
    EXPECT_NE(
        error_of([&] { fully_shard(module_with(at::zeros({2})), {}); }).find("init_device_mesh"),
        std::string::npos);
    EXPECT_NE(error_of([&] {
                fully_shard(module_with(at::zeros({})), options);
              }).find("odd has no dimension"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                fully_shard(module_with(at::zeros({2, 3}).t()), options);
              }).find("odd of shape [3, 2]"),
              std::string::npos);
    auto module = module_with(at::zeros({2}));
    fully_shard(module, options);
    EXPECT_NE(error_of([&] { fully_shard(module, options); }).find("already"), std::string::npos);
    const std::string shared =
        error_of([&] { fully_shard(module_with(module->parameters()[0]), options); });
    EXPECT_NE(shared.find("parameter odd of Odd is the same tensor as odd"), std::string::npos)
        << shared;
    EXPECT_NE(error_of([] { FSDPModule().unshard(); }).find("empty"), std::string::npos);
  });
}

}  // namespace
}  // namespace fsdp::testing
