#include <gtest/gtest.h>

#include <string>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

TEST(FullyShardTest, SlicesAreNamedFromTheHandleAndWriteThrough) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<std::string> names;
    for (const LocalShard& slice : setup.root.sharded_parameters()) {
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

TEST(FullyShardTest, MixedPrecisionComputesInBfloat16AndReducesInFloat) {
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
        const at::Tensor gradient = param.value().grad();
        if (gradient.defined() && param.key() != "head") {  // the same tensor as the embedding
          gradients[param.key()] = gradient.to(at::kFloat);
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
    expect_gradients(rank, setup.root, expected);
    EXPECT_EQ(setup.root.full_parameter("gain").scalar_type(), at::kFloat);
  });
}

TEST(FullyShardTest, FrozenParametersAreGatheredButNotReduced) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.frozen_first_weight = true;
    Sharded setup = make(rank, config);
    loss(setup.model, 0, rank.rank).backward();
    // Per block: one gather of what trains and one of what is frozen.
    EXPECT_EQ(count(rank, "all_gather"), 1 + 3 * 2 * 2);
    EXPECT_EQ(count(rank, "reduce_scatter"), 4);
    for (const LocalShard& slice : setup.root.sharded_gradients()) {
      const bool is_used_and_trains = !slice.fqn.ends_with(".up") && !slice.fqn.ends_with(".spare");
      EXPECT_EQ(slice.local.defined(), is_used_and_trains) << slice.fqn;
    }
  });
}

// The same gradients with and without decay: only what decays ends elsewhere, by its decay.
TEST(FullyShardTest, ParametersOfAGroupWithoutDecayDoNotDecay) {
  run_ranks(2, [](Rank& rank) {
    const auto train = [&rank](double weight_decay) {
      Sharded setup = make(rank);
      for (const Unit<ToyBlock>& block : setup.model->blocks) {
        block->use_spare = true;
      }
      std::vector<std::string> spares;
      std::vector<std::string> rest;
      for (const LocalShard& shard : setup.root.sharded_parameters()) {
        (shard.fqn.ends_with(".spare") ? spares : rest).push_back(shard.fqn);
      }
      AdamW optimizer(
          setup.root,
          {{.params = rest, .weight_decay = 0.0}, {.params = spares, .weight_decay = weight_decay}},
          {.lr = 0.1});
      loss(setup.model, 0, rank.rank).backward();
      optimizer.step();
      EXPECT_EQ(optimizer.exp_avg().size(), 14u);
      EXPECT_EQ(optimizer.exp_avg_sq()[3].fqn, "block0.bias");
      EXPECT_EQ(optimizer.step_count(), 1);
      std::map<std::string, at::Tensor> after;
      for (const LocalShard& slice : setup.root.sharded_parameters()) {
        after[slice.fqn] = setup.root.full_parameter(slice.fqn);
      }
      return after;
    };
    const auto plain = train(0);
    const auto decayed = train(0.5);
    for (const auto& [fqn, parameter] : decayed) {
      at::Tensor start = at::empty_like(parameter);
      initialise(fqn, start);
      const at::Tensor decay = start * (fqn.ends_with(".spare") ? 0.1 * 0.5 : 0.0);
      EXPECT_LE((plain.at(fqn) - decay - parameter).abs().max().item<double>(), 1e-7) << fqn;
      EXPECT_EQ(at::equal(plain.at(fqn), parameter), !fqn.ends_with(".spare")) << fqn;
    }
  });
}

// A handle remembers its units, until modules are sharded again.
TEST(FullyShardTest, UnitsAreThoseThatHaveBeenShardedByNow) {
  run_ranks(1, [](Rank& rank) {
    struct Outer : torch::nn::Module {};
    const auto outer = std::make_shared<Outer>();
    const auto inner = outer->register_module("inner", std::make_shared<Outer>());
    inner->register_parameter("weight", at::zeros({3}));
    const FSDPModule root = fully_shard(outer, {rank.mesh, {}, {}});
    EXPECT_EQ(root.units().size(), 1u);
    EXPECT_EQ(root.units().size(), 1u);
    const auto late = inner->register_module("late", std::make_shared<Outer>());
    fully_shard(late, {rank.mesh, {}, {}});
    ASSERT_EQ(root.units().size(), 2u);
    EXPECT_EQ(root.units()[1].state(), fsdp_module(*late).state());
  });
}

TEST(FullyShardTest, MixedPrecisionLeavesIntegersAsTheyAre) {
  struct Table : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return x * weight + index; }
    at::Tensor weight = register_parameter("weight", at::full({2}, 3.0));
    at::Tensor index = register_parameter("index", at::full({2}, 1001, at::kLong), false);
  };
  run_ranks(2, [](Rank& rank) {
    Unit<Table> table(std::make_shared<Table>());
    FullyShardOptions options;
    options.mesh = rank.mesh;
    options.mp_policy.param_dtype = at::kBFloat16;
    options.mp_policy.reduce_dtype = at::kFloat;
    FSDPModule root = fully_shard(table.ptr(), options);
    root.unshard();
    EXPECT_EQ(table->weight.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(table->index, at::full({2}, 1001, at::kLong)));
    root.reshard();
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
        error_of([&] { fully_shard(module_with(at::zeros({2})), {}); }).find("init_process_group"),
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

TEST(FullyShardTest, GradientsThatNoGroupReducesAreRefusedBeforeAnythingIsChanged) {
  run_ranks(2, [](Rank& rank) {
    auto module = std::make_shared<torch::nn::Module>("Odd");
    const at::Tensor weight = module->register_parameter("weight", at::ones({2}));
    at::Tensor odd = module->register_parameter("odd", at::ones({2}, at::kComplexFloat));
    try {
      fully_shard(module, {rank.mesh, {}, {}});
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("parameter odd would be reduced"),
                std::string::npos)
          << error.what_without_backtrace();
    }
    EXPECT_TRUE(at::equal(weight, at::ones({2})));
    odd.set_requires_grad(false);
    FSDPModule root = fully_shard(module, {rank.mesh, {}, {}});
    root.unshard();
    EXPECT_TRUE(at::equal(module->named_parameters()["odd"], at::ones({2}, at::kComplexFloat)));
    root.reshard();
  });
}

TEST(FullyShardTest, RootShardedBeforeItsBlocksIsToldTheOrder) {
  run_ranks(1, [](Rank& rank) {
    const FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    Unit<ToyModel> model(std::make_shared<ToyModel>(ToyConfig{}));
    fully_shard(model.ptr(), options);
    try {
      fully_shard(model->blocks[1].ptr(), options);
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_EQ(text,
                "fully_shard: " + model->blocks[1]->name() + " lies inside " + model->name() +
                    ", which was sharded before it and has taken its parameter block1.up; shard "
                    "the nested modules first and the module around them last");
    }
  });
}

TEST(FullyShardTest, ModelDestroyedByAnExceptionDoesNotWaitForPeers) {
  class CountedWork : public Work {
   public:
    explicit CountedWork(int* waits) : waits_(waits) {}
    void wait() override { ++*waits_; }
    bool is_done() override { return true; }

   private:
    int* waits_;
  };
  class CountedMarks : public RecordingCollectives {
   public:
    explicit CountedMarks(int* waits)
        : RecordingCollectives(make_local_world(1).front()), waits_(waits) {}
    WorkPtr mark(Issue) override { return std::make_shared<CountedWork>(waits_); }

   private:
    int* waits_;
  };
  for (const bool fails : {false, true}) {
    int waits = 0;
    try {
      Rank rank;
      rank.comm = std::make_shared<CountedMarks>(&waits);
      rank.mesh = init_device_mesh(c10::kCPU, {1}, {"dp_shard"}, rank.comm);
      Sharded setup = make(rank);
      loss(setup.model, 0, 0);
      TORCH_CHECK(!fails, "the training failed");
    } catch (const c10::Error&) {
      EXPECT_TRUE(fails);
    }
    EXPECT_EQ(waits, fails ? 0 : 1);
  }
}

TEST(FullyShardTest, ModuleBetweenARootAndItsUnitsIsRefused) {
  struct Middle : torch::nn::Module {
    Middle() { register_module("block", block); }
    std::shared_ptr<ToyBlock> block = std::make_shared<ToyBlock>(ToyConfig{});
  };
  struct Outer : torch::nn::Module {
    Outer() { register_module("middle", middle); }
    std::shared_ptr<Middle> middle = std::make_shared<Middle>();
  };
  run_ranks(1, [](Rank& rank) {
    const FullyShardOptions options{
        .mesh = rank.mesh, .reshard_after_forward = std::nullopt, .mp_policy = {}};
    const auto outer = std::make_shared<Outer>();
    fully_shard(outer->middle->block, options);
    fully_shard(outer, options);
    try {
      fully_shard(outer->middle, options);  // has no parameters of its own
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_EQ(std::string(error.what_without_backtrace()),
                "fully_shard: " + outer->middle->name() + " contains " +
                    outer->middle->block->name() + ", whose root " + outer->name() +
                    " lies outside it; shard the nested modules first and the root last");
    }
    EXPECT_EQ(fsdp_module(*outer).units().size(), 2U);
  });
}

}  // namespace
}  // namespace fsdp::testing
