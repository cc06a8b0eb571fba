#include <fsdp/counters.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "tests/unit/fsdp_runtime/engine/plain_training.h"
#include "tests/unit/fsdp_runtime/engine/ranks.h"

namespace fsdp::testing {
namespace {

using Checkpointing = ToyConfig::Checkpointing;

struct Case {
  std::string name;
  ToyConfig config;
  std::optional<bool> reshard_after_forward;
  bool as_on_a_device = false;
  bool reduces_each_use = false;  // two sums over ranks added, where the reference adds once
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&all](const std::string& name, auto change) -> Case& {
    all.push_back({name, ToyConfig{}, std::nullopt});
    change(all.back());
    return all.back();
  };
  add("default", [](Case&) {});
  add("unmaterialized", [](Case& c) { c.config.unmaterialized = true; });
  add("keeps_parameters", [](Case& c) { c.reshard_after_forward = false; });
  add("reshards_root", [](Case& c) { c.reshard_after_forward = true; });
  add("frozen_weight", [](Case& c) { c.config.frozen_first_weight = true; });
  add("block_used_twice", [](Case& c) { c.config.use_block_twice = true; });
  add("one_block", [](Case& c) { c.config.blocks = 1; });
  add("no_block", [](Case& c) { c.config.blocks = 0; });
  add("tiny", [](Case& c) { c.config.width = 2, c.config.hidden = 1, c.config.vocab = 3; });
  add("checkpoint_around", [](Case& c) { c.config.checkpointing = Checkpointing::kAroundUnit; });
  add("checkpoint_inside", [](Case& c) { c.config.checkpointing = Checkpointing::kInsideUnit; });
  add("checkpoint_around_twice", [](Case& c) {
    c.config.checkpointing = Checkpointing::kAroundUnit;
    c.config.use_block_twice = true;
    c.reduces_each_use = true;
  });
  add("windows", [](Case& c) { c.config = wide_toy(); });
  add("windows_keep_parameters", [](Case& c) {
    c.config = wide_toy();
    c.reshard_after_forward = false;
  });
  add("windows_twice_with_checkpoints", [](Case& c) {
    c.config = wide_toy();
    c.config.use_block_twice = true;
    c.config.checkpointing = Checkpointing::kInsideUnit;
  });
  for (const char* name :
       {"default", "keeps_parameters", "checkpoint_inside", "checkpoint_around_twice", "windows"}) {
    Case in_batches = *std::find_if(all.begin(), all.end(),
                                    [&name](const Case& each) { return each.name == name; });
    in_batches.name += "_in_batches";
    in_batches.as_on_a_device = true;
    all.push_back(in_batches);
  }
  return all;
}

class TrainingParity : public ::testing::TestWithParam<std::tuple<int64_t, Case>> {};

// Exact, also over many ranks, because the backend adds in rank order. The bound for the exception
// covers a handful of updates of size lr.
double tolerance(const Case& test_case) { return test_case.reduces_each_use ? 1e-6 : 0.0; }

TEST_P(TrainingParity, MatchesTrainingWithoutSharding) {
  const auto& [ranks, test_case] = GetParam();
  const ToyConfig config = test_case.config;
  AdamWOptions options;
  options.lr = 1e-2;
  constexpr int64_t kSteps = 4;

  PlainTraining plain(config, ranks, options);
  std::vector<std::vector<float>> plain_losses(kSteps, std::vector<float>(ranks));
  for (int64_t step = 0; step < kSteps; ++step) {
    plain.update(plain.gradients([&](int64_t rank) {
      const at::Tensor tokens = tokens_of(config, step, rank);
      at::Tensor loss = loss_of(plain.model(tokens), tokens);
      plain_losses[step][rank] = loss.item<float>();
      return loss;
    }));
  }

  run_ranks(
      ranks,
      [&, &test_case = test_case](Rank& rank) {
        Unit<ToyModel> model =
            make_sharded(config, {rank.mesh, test_case.reshard_after_forward, {}});
        FSDPModule root = fsdp_module(*model);
        root.init_parameters(initialise);
        AdamW optimizer(root, options);
        for (int64_t step = 0; step < kSteps; ++step) {
          const at::Tensor tokens = tokens_of(config, step, rank.rank);
          at::Tensor loss = loss_of(model(tokens), tokens);
          EXPECT_NEAR(loss.item<float>(), plain_losses[step][rank.rank], 10 * tolerance(test_case));
          loss.backward();
          optimizer.step();
          optimizer.zero_grad();
        }
        for (const LocalShard& slice : root.sharded_parameters()) {
          const at::Tensor expected = plain.parameter(slice.fqn);
          const at::Tensor actual = root.full_parameter(slice.fqn);
          ASSERT_EQ(actual.sizes(), expected.sizes()) << slice.fqn;
          EXPECT_LE((actual - expected).abs().max().item<double>(), tolerance(test_case))
              << slice.fqn;
        }
      },
      test_case.as_on_a_device);
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrainingParity,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::ValuesIn(cases())),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + "_" +
                                  std::to_string(std::get<0>(info.param)) + "ranks";
                         });

}  // namespace
}  // namespace fsdp::testing
