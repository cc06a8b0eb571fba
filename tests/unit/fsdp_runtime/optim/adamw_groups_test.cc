// Param groups of AdamW against the same without sharding.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>

#include "tests/unit/fsdp_runtime/optim/grouped_model.h"

namespace fsdp::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What the schedule of the test sets before a step.
void set_rates(int64_t step, const std::function<void(size_t group, AdamWOptions options)>& set) {
  std::vector<AdamWOptions> options = options_by_group();
  if (step == 2) {
    options[0].lr = 1e-3;
    set(0, options[0]);
  } else if (step == 3) {
    options[1].weight_decay = 0.2;
    set(1, options[1]);
  }
}

class AdamWGroupsTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(AdamWGroupsTest, HaveOptionsOfTheirOwnWhichCanBeChanged) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, groups_of(setup.root), kDefaults);
    PlainTraining plain({}, rank.size, {});
    std::vector<AdamWOptions> options = options_by_group();
    plain.options_of = [&options](const std::string& fqn) -> std::optional<AdamWOptions> {
      const std::optional<size_t> group = group_of(fqn);
      return group ? std::optional(options[*group]) : std::nullopt;
    };
    for (int64_t step = 0; step < 5; ++step) {
      set_rates(step, [&](size_t group, const AdamWOptions& changed) {
        options[group] = changed;
        group == 0 ? optimizer.set_lr(0, changed.lr) : optimizer.set_options(group, changed);
      });
      plain.update(gradients_in(plain, step));
      backward_in(setup, step, rank.rank);
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_parameters(setup.root, plain);
    optimizer.set_lr(0.25);
    EXPECT_EQ(optimizer.options(0).lr, 0.25);
    EXPECT_EQ(optimizer.options(1).lr, 0.25);
    EXPECT_EQ(optimizer.options(1).weight_decay, 0.2);
  });
}

/// The parameters after three steps of LibTorch's own AdamW in the same groups.
std::map<std::string, at::Tensor> train_with_libtorch(int64_t ranks) {
  PlainTraining plain({}, ranks, {});
  std::vector<std::vector<at::Tensor>> tensors(2);
  for (const auto& param : plain.model->named_parameters()) {
    if (const auto group = group_of(param.key()); group && param.key() != "head") {
      tensors[*group].push_back(param.value());
    }
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (size_t g = 0; g < tensors.size(); ++g) {
    const AdamWOptions options = options_by_group()[g];
    groups.emplace_back(tensors[g], std::make_unique<torch::optim::AdamWOptions>(
                                        torch::optim::AdamWOptions(options.lr)
                                            .betas({options.beta1, options.beta2})
                                            .eps(options.eps)
                                            .weight_decay(options.weight_decay)));
  }
  torch::optim::AdamW optimizer(groups);
  for (int64_t step = 0; step < 3; ++step) {
    const Gradients gradients = gradients_in(plain, step);
    for (const auto& param : plain.model->named_parameters()) {
      const auto found = gradients.find(param.key());
      param.value().mutable_grad() = found == gradients.end() ? at::Tensor() : found->second;
    }
    optimizer.step();
  }
  std::map<std::string, at::Tensor> result;
  for (const auto& param : plain.model->named_parameters()) {
    result[param.key()] = param.value().detach();
  }
  return result;
}

// LibTorch multiplies and adds where Python has lerp: the last bits differ.
TEST_P(AdamWGroupsTest, DoWhatThoseOfLibTorchDo) {
  const std::map<std::string, at::Tensor> expected = train_with_libtorch(GetParam());
  run_ranks(GetParam(), [&](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, groups_of(setup.root), kDefaults);
    for (int64_t step = 0; step < 3; ++step) {
      backward_in(setup, step, rank.rank);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const LocalShard& shard : setup.root.sharded_parameters()) {
      EXPECT_TRUE(at::allclose(shard.local, part_of(expected.at(shard.fqn), shard), 1e-5, 1e-6))
          << shard.fqn;
    }
  });
}

TEST_P(AdamWGroupsTest, ParametersThatNoneNamesKeepTheirValueAndHaveNoState) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded setup = make(rank);
    AdamW optimizer(setup.root, groups_of(setup.root), kDefaults);
    const at::Tensor before = setup.root.full_parameter("embedding");
    for (int64_t step = 0; step < 2; ++step) {
      backward_in(setup, step, rank.rank);
      optimizer.step();
      optimizer.zero_grad();
    }
    EXPECT_TRUE(at::equal(setup.root.full_parameter("embedding"), before));
    std::vector<std::string> moments;
    for (const LocalShard& moment : optimizer.exp_avg()) {
      moments.push_back(moment.fqn);
    }
    std::vector<std::string> named;
    const std::vector<LocalShard> shards = setup.root.sharded_parameters();
    for (size_t i = 0; i < shards.size(); ++i) {
      if (shards[i].fqn == "embedding") {
        EXPECT_EQ(optimizer.parameter_steps()[i], 0);
      } else {
        named.push_back(shards[i].fqn);
      }
    }
    EXPECT_EQ(moments, named);
    EXPECT_EQ(optimizer.step_count(), 2);
  });
}

TEST_P(AdamWGroupsTest, GoOnFromWhatWasSaved) {
  run_ranks(GetParam(), [](Rank& rank) {
    Sharded first = make(rank);
    AdamW optimizer(first.root, groups_of(first.root), kDefaults);
    const auto train = [&rank](Sharded& setup, AdamW& each, int64_t step) {
      backward_in(setup, step, rank.rank);
      each.step();
      each.zero_grad();
    };
    train(first, optimizer, 0);
    train(first, optimizer, 1);
    Sharded second = make(rank);
    AdamW resumed(second.root, groups_of(second.root), kDefaults);
    const auto copy = [](const std::vector<LocalShard>& from, const std::vector<LocalShard>& to) {
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(from[i].fqn, to[i].fqn);
        to[i].local.copy_(from[i].local);
      }
    };
    copy(first.root.sharded_parameters(), second.root.sharded_parameters());
    copy(optimizer.exp_avg(), resumed.exp_avg());
    copy(optimizer.exp_avg_sq(), resumed.exp_avg_sq());
    resumed.set_parameter_steps(optimizer.parameter_steps());
    for (int64_t step = 2; step < 4; ++step) {
      train(first, optimizer, step);
      train(second, resumed, step);
    }
    EXPECT_EQ(resumed.parameter_steps(), optimizer.parameter_steps());
    for (const LocalShard& shard : first.root.sharded_parameters()) {
      EXPECT_TRUE(
          at::equal(first.root.full_parameter(shard.fqn), second.root.full_parameter(shard.fqn)))
          << shard.fqn;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, AdamWGroupsTest, ::testing::Values(1, 2, 3),
                         [](const auto& info) { return std::to_string(info.param) + "ranks"; });

TEST(AdamWParamGroupTest, MistakesAreNamed) {
  run_ranks(1, [](Rank& rank) {
    Sharded setup = make(rank);
    const auto with = [&](const std::string& name) {
      return refusal([&] { AdamW(setup.root, {{.params = {name}}}, {}); });
    };
    EXPECT_THAT(with("block0.upp"), HasSubstr("param group 0 names \"block0.upp\""));
    EXPECT_THAT(with("head"), HasSubstr("e.g. \"embedding\"")) << "its second name";
    EXPECT_THAT(refusal([&] { AdamW(setup.root, {.lr = -1}); }), HasSubstr("lr"));
    EXPECT_THAT(refusal([&] { AdamW(FSDPModule(), {}); }), HasSubstr("empty FSDPModule"));
    AdamW optimizer(setup.root, {{.params = {"gain"}}, {.params = {"block0.up"}}}, {});
    EXPECT_EQ(optimizer.group_count(), 2u);
    EXPECT_THAT(optimizer.params(1), ElementsAre("block0.up"));
    const std::string expected = "there is no param group 2; they are counted from 0, and there";
    EXPECT_THAT(refusal([&] { optimizer.options(2); }), HasSubstr(expected));
    EXPECT_THAT(refusal([&] { optimizer.params(2); }), HasSubstr(expected));
    EXPECT_THAT(refusal([&] { optimizer.set_lr(2, 1); }), HasSubstr(expected));
    EXPECT_THAT(refusal([&] { optimizer.set_lr(1, -1); }), HasSubstr("lr of param group 1"));
    EXPECT_EQ(optimizer.options(1).lr, AdamWOptions().lr) << "what is refused is not kept";
  });
}

TEST(AdamWParamGroupTest, FrozenParametersMayBeNamed) {
  run_ranks(2, [](Rank& rank) {
    ToyConfig config;
    config.frozen_first_weight = true;
    Sharded setup = make(rank, config);
    AdamW optimizer(setup.root, groups_of(setup.root), kDefaults);
    const at::Tensor before = setup.root.full_parameter("block0.up");
    loss(setup.model, 0, rank.rank).backward();
    optimizer.step();
    EXPECT_TRUE(at::equal(setup.root.full_parameter("block0.up"), before));
    for (const LocalShard& moment : optimizer.exp_avg()) {
      EXPECT_FALSE(moment.fqn.ends_with(".up")) << moment.fqn;
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
