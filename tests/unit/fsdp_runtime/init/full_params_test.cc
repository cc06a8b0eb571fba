#include <fsdp/full_params.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"

namespace fsdp::testing {
namespace {

std::map<std::string, at::Tensor> values_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> values;
  for (const auto& param : module.named_parameters()) {
    values[param.key()] = param.value().detach().clone();
  }
  return values;
}

at::Tensor initial(const std::string& fqn, const at::Tensor& like) {
  at::Tensor full = at::empty_like(like);
  initialise(fqn == "head" ? "embedding" : fqn, full);
  return full;
}

TEST(FullParamsTest, AreTheModulesOwnAndShardedAgainBehindIt) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const at::Tensor before = loss(setup.model, 0, rank.rank).detach();
    summon_full_params(setup.root, [&] {
      for (const auto& [fqn, value] : values_of(*setup.model)) {
        EXPECT_TRUE(at::equal(value, initial(fqn, value))) << fqn;
      }
      EXPECT_TRUE(setup.model->head.is_same(setup.model->embedding));
    });
    const std::string said = refusal([&] { setup.model->blocks[0]->up.norm(); });
    EXPECT_NE(said.find("is sharded now"), std::string::npos) << said;
    EXPECT_TRUE(at::equal(loss(setup.model, 0, rank.rank), before));
  });
}

TEST(FullParamsTest, WhatIsWrittenIsKeptOnlyWithWriteback) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto write = [&](double value, const FullParamsOptions& options) {
      summon_full_params(
          setup.root,
          [&] {
            setup.model->gain.fill_(value);
            setup.model->blocks[1]->down.set_data(at::full({15, 33}, value));
          },
          options);
    };
    write(3, {.writeback = false});
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), initial("gain", at::empty({15}))));
    write(4, {});
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), at::full({15}, 4.0)));
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block1.down"), at::full({15, 33}, 4.0)));
    const at::Tensor up = setup.root.full_parameter("block1.up");
    EXPECT_TRUE(at::equal(up, initial("block1.up", up)));
    // Training goes on with it.
    PlainTraining plain({}, 2, {});
    {
      const at::NoGradGuard no_grad;
      plain.model->gain.fill_(4);
      plain.model->blocks[1]->down.fill_(4);
    }
    EXPECT_TRUE(at::equal(loss(setup.model, 0, rank.rank), loss(plain.model, 0, rank.rank)));
  });
}

TEST(FullParamsTest, AreInTheirOwnDtypeInMixedPrecision) {
  run_ranks(2, [](Rank& rank) {
    FullyShardOptions options;
    options.mp_policy.param_dtype = at::kBFloat16;
    Sharded setup = make(rank, {}, options);
    loss(setup.model, 0, rank.rank).backward();
    summon_full_params(setup.root, [&] {
      EXPECT_EQ(setup.model->gain.scalar_type(), at::kFloat);
      setup.model->gain.fill_(1.001);
    });
    EXPECT_EQ(setup.model->gain.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), at::full({15}, 1.001)));
    AdamW(setup.root, {}).zero_grad();
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(setup.root.sharded_gradients()[1].local.defined());
  });
}

TEST(FullParamsTest, WithoutRecurseOnlyTheUnitsOwn) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    summon_full_params(setup.root,
                       [&] {
                         EXPECT_EQ(setup.model->gain.norm().dim(), 0);
                         refusal([&] { setup.model->blocks[0]->up.norm(); });
                       },
                       {.recurse = false});
    summon_full_params(fsdp_module(*setup.model->blocks[0]), [&] {
      EXPECT_EQ(setup.model->blocks[0]->up.norm().dim(), 0);
      refusal([&] { setup.model->gain.norm(); });
    });
  });
}

TEST(FullParamsTest, OnlyTheFirstRankKeepsThemIfThatIsAskedFor) {
  run_ranks(4, [](Rank& rank) {
    Sharded setup = make_hybrid(rank, 2);
    summon_full_params(
        setup.root,
        [&] {
          if (rank.rank == 0) {
            EXPECT_TRUE(at::equal(setup.model->gain, initial("gain", at::empty({15}))));
          } else {
            refusal([&] { setup.model->gain.norm(); });
          }
        },
        {.writeback = false, .rank0_only = true, .offload_to_cpu = true});
    EXPECT_EQ(loss(setup.model, 0, rank.rank).dim(), 0);
  });
}

TEST(FullParamsTest, GradientsAreThereAndAreWrittenBack) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    PlainTraining plain({}, 2, {});
    const auto expected = plain.gradients([&](int64_t r) { return loss(plain.model, 0, r); });
    loss(setup.model, 0, rank.rank).backward();
    summon_full_params(setup.root,
                       [&] {
                         for (const auto& param : setup.model->named_parameters()) {
                           const at::Tensor& gradient = param.value().grad();
                           const bool has_gradient = !param.key().ends_with("spare");
                           ASSERT_EQ(gradient.defined(), has_gradient) << param.key();
                           if (has_gradient && param.key() != "head") {
                             EXPECT_TRUE(at::equal(gradient, expected.at(param.key())))
                                 << param.key();
                           }
                         }
                         setup.model->gain.mutable_grad().fill_(0.25);
                       },
                       {.with_grads = true});
    EXPECT_FALSE(setup.model->gain.grad().defined());
    const LocalShard gain = setup.root.sharded_gradients()[1];
    EXPECT_EQ(gain.fqn, "gain");
    EXPECT_TRUE(at::equal(gain.local, at::full_like(gain.local, 0.25)));
  });
}

TEST(FullParamsTest, ARankThatHasDroppedItsGradientsTakesPart) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<at::Tensor> leaves = setup.root.parameters();
    loss(setup.model, 0, rank.rank).backward();
    const FullParamsOptions with_grads{.writeback = false, .with_grads = true};
    const auto has_gradient = [&] {
      bool has = false;
      summon_full_params(
          setup.root, [&] { has = setup.model->gain.grad().defined(); }, with_grads);
      return has;
    };
    for (const int64_t ranks : {1, 2}) {
      if (rank.rank < ranks) {
        for (at::Tensor& leaf : leaves) {
          leaf.mutable_grad().reset();
        }
      }
      EXPECT_EQ(has_gradient(), ranks == 1) << "as long as a rank has its part";
    }
  });
}

TEST(FullParamsTest, OfAnotherShapeNothingIsWrittenBack) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const std::string said = refusal([&] {
      summon_full_params(setup.root, [&] {
        setup.model->gain.fill_(4);
        setup.model->blocks[1]->down.set_data(at::ones({2, 2}));
      });
    });
    EXPECT_NE(said.find("block1.down is of shape [2, 2]"), std::string::npos) << said;
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), initial("gain", at::empty({15}))));
    EXPECT_EQ(loss(setup.model, 0, rank.rank).dim(), 0);
  });
}

TEST(FullParamsTest, UnitsThatWereGatheredAreGatheredAgain) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const FSDPModule block = fsdp_module(*setup.model->blocks[0]);
    block.unshard();
    summon_full_params(setup.root, [&] { setup.model->blocks[0]->up.fill_(2); });
    EXPECT_TRUE(at::equal(setup.model->blocks[0]->up, at::full({33, 15}, 2.0)));
    refusal([&] { setup.model->blocks[1]->up.norm(); });
    block.reshard();
  });
}

TEST(FullParamsTest, ARefusalLeavesTheModelAsItWas) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto expect_refused = [&](const std::function<void()>& misuse, const std::string& part) {
      const std::string said = refusal(misuse);
      EXPECT_NE(said.find(part), std::string::npos) << said;
    };
    const auto nothing = [] {};
    expect_refused([&] { summon_full_params(FSDPModule(), nothing); }, "empty FSDPModule");
    expect_refused([&] { summon_full_params(setup.root, {}); }, "is empty");
    expect_refused([&] { summon_full_params(setup.root, nothing, {.rank0_only = true}); },
                   "rank0_only");
    summon_full_params(setup.root, [&] {
      expect_refused([&] { summon_full_params(setup.root, nothing); }, "whole already");
      expect_refused([&] { loss(setup.model, 0, rank.rank); }, "summon_full_params");
      expect_refused([&] { setup.root.unshard(); }, "summon_full_params");
    });
    const at::Tensor result = loss(setup.model, 0, rank.rank);
    result.backward();
    EXPECT_TRUE(setup.root.sharded_gradients()[0].local.defined());
  });
}

TEST(FullParamsTest, InForwardAndBackwardTheyAreRefused) {
  struct Asking : torch::nn::Module {
    at::Tensor forward(at::Tensor x) {
      if (inside) {
        inside();
      }
      return x * weight;
    }
    at::Tensor weight = register_parameter("weight", at::ones({4}));
    std::function<void()> inside;
  };
  run_ranks(2, [](Rank& rank) {
    const Unit<Asking> unit(std::make_shared<Asking>());
    const FSDPModule root = fully_shard(unit.ptr(), {.mesh = rank.mesh});
    std::string in_forward;
    std::string in_backward;
    unit->inside = [&] { in_forward = refusal([&] { summon_full_params(root, [] {}); }); };
    at::Tensor result = unit(at::ones({4}));
    result.register_hook([&](const at::Tensor&) {
      in_backward = refusal([&] { summon_full_params(root, [] {}); });
    });
    (result * 2).sum().backward();
    EXPECT_NE(in_forward.find("in its forward or backward"), std::string::npos) << in_forward;
    EXPECT_NE(in_backward.find("in its forward or backward"), std::string::npos) << in_backward;
    unit->inside = {};
    EXPECT_TRUE(at::equal(unit(at::ones({4})), at::ones({4})));
  });
}

TEST(FullParamsTest, WhatThrowsKeepsTheOldValues) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    EXPECT_THROW(summon_full_params(setup.root,
                                    [&] {
                                      setup.model->gain.fill_(9);
                                      throw std::runtime_error("told to");
                                    }),
                 std::runtime_error);
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), initial("gain", at::empty({15}))));
    EXPECT_EQ(loss(setup.model, 0, rank.rank).dim(), 0);
  });
}

TEST(ApplyTest, VisitsChildrenFirstWithTheParametersOfTheirUnitWhole) {
  run_ranks(2, [](Rank& rank) {
    Sharded setup = make(rank);
    std::vector<const torch::nn::Module*> visited;
    fsdp::apply(setup.root, [&](torch::nn::Module& module) {
      visited.push_back(&module);
      for (at::Tensor& param : module.parameters(/*recurse=*/false)) {
        param.fill_(static_cast<double>(visited.size()));
      }
      if (auto* block = module.as<ToyBlock>(); block == &*setup.model->blocks[0]) {
        refusal([&] { setup.model->blocks[1]->up.norm(); });
      }
    });
    ASSERT_EQ(visited.size(), 4u);
    EXPECT_EQ(visited.front(), &*setup.model->blocks[0]);
    EXPECT_EQ(visited.back(), &*setup.model);
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block1.up"), at::full({33, 15}, 2.0)));
    EXPECT_TRUE(at::equal(setup.root.full_parameter("gain"), at::full({15}, 4.0)));
    refusal([&] { fsdp::apply(FSDPModule(), [](torch::nn::Module&) {}); });
    refusal([&] { fsdp::apply(setup.root, {}); });
  });
}

}  // namespace
}  // namespace fsdp::testing
