#include "worker/config/training_rules.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

/// What a configuration with these settings is refused with; empty: it is not.
std::string RefusalOf(const std::vector<std::string>& settings) {
  std::vector<std::string> all = {"model.config=unused", "data.train=[\"unused\"]"};
  all.insert(all.end(), settings.begin(), settings.end());
  try {
    ParseConfig(ResolveConfig("", all));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TrainConfig ParsedWith(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.config=unused", "data.train=[\"unused\"]"});
  return ParseConfig(ResolveConfig("", settings));
}

TEST(TrainingRulesTest, OptionsOfAnotherOptimizerAreRefused) {
  EXPECT_EQ(RefusalOf({"optimizer.momentum=0.9"}),
            "configuration: optimizer.momentum = 0.9: expected the default, \"auto\", with "
            "optimizer.name = \"adamw\"; it is for \"sgd\" or \"muon\"");
  EXPECT_EQ(RefusalOf({"optimizer.name=sgd", "optimizer.betas=[0.9,0.95]"}),
            "configuration: optimizer.betas = [0.9,0.95]: expected the default, [0.9,0.999], with "
            "optimizer.name = \"sgd\"; it is for \"adamw\" or \"muon\"");
  EXPECT_NE(RefusalOf({"optimizer.name=sgd", "optimizer.ns_steps=6"}), "");
  EXPECT_NE(RefusalOf({"optimizer.name=muon", "optimizer.dampening=0.5"}), "");
  EXPECT_EQ(RefusalOf({"optimizer.name=muon", "optimizer.betas=[0.9,0.95]",
                       "optimizer.adamw_lr=0.001", "optimizer.adjust_lr_fn=match_rms_adamw"}),
            "");
}

TEST(TrainingRulesTest, ValuesThatNoOptimizerTakesAreRefused) {
  EXPECT_EQ(RefusalOf({"optimizer.name=lion"}),
            "configuration: optimizer.name = \"lion\": expected \"adamw\", \"sgd\" or \"muon\"");
  EXPECT_NE(RefusalOf({"optimizer.name=sgd", "optimizer.momentum=1"}), "");
  EXPECT_NE(RefusalOf({"optimizer.name=sgd", "optimizer.momentum=much"}), "");
  EXPECT_NE(RefusalOf({"optimizer.name=muon", "optimizer.ns_steps=100"}), "");
  EXPECT_EQ(RefusalOf({"optimizer.name=sgd", "optimizer.nesterov=true"}),
            "configuration: optimizer.nesterov = true: expected false without optimizer.momentum, "
            "and with optimizer.dampening");
  EXPECT_EQ(RefusalOf({"optimizer.name=sgd", "optimizer.nesterov=true", "optimizer.momentum=0.9"}),
            "");
}

TEST(TrainingRulesTest, DecayThatDoesNotFitIsRefused) {
  EXPECT_EQ(RefusalOf({"schedule.decay_steps=5"}),
            "configuration: schedule.decay_steps = 5: expected the default, 0, with schedule.kind "
            "= \"constant\"; it is for \"wsd\"");
  EXPECT_EQ(RefusalOf({"schedule.kind=wsd", "train.steps=100", "schedule.warmup_steps=80",
                       "schedule.decay_steps=30"}),
            "configuration: schedule.decay_steps = 30: expected a decay that fits behind the 80 "
            "steps of schedule.warmup_steps into the 100 of train.steps; it has 30");
  EXPECT_EQ(RefusalOf({"schedule.kind=wsd", "train.steps=100", "schedule.warmup_steps=80",
                       "schedule.decay_steps=20"}),
            "");
}

TEST(TrainingRulesTest, BatchesAndRollbacksNeedWhatTheyStandOn) {
  EXPECT_EQ(RefusalOf({"train.global_batch_size=8", "train.grad_accumulation=2"}),
            "configuration: train.grad_accumulation = 2: expected 1 with train.global_batch_size, "
            "which it follows from");
  EXPECT_EQ(RefusalOf({"train.on_nonfinite=rollback"}),
            "configuration: train.on_nonfinite = \"rollback\": expected another one without "
            "checkpoint.dir, from which it would go on");
  EXPECT_EQ(RefusalOf({"train.on_spike=rollback", "checkpoint.dir=somewhere"}), "");
  EXPECT_EQ(RefusalOf({"train.on_out_of_memory=shrink"}),
            "configuration: train.on_out_of_memory = \"shrink\": expected stop without "
            "checkpoint.dir, where the next start finds what has fitted");
  EXPECT_EQ(RefusalOf({"train.on_out_of_memory=shrink", "checkpoint.dir=somewhere"}), "");
  EXPECT_NE(RefusalOf({"train.spike_window=50"}), "");
}

TEST(TrainingRulesTest, StepsAreGraphsWithTheOptimizerWhoseRateIsOnTheDevice) {
  EXPECT_EQ(RefusalOf({"train.step_graph=true"}), "");
  EXPECT_EQ(RefusalOf({"train.step_graph=true", "optimizer.name=sgd"}),
            "configuration: train.step_graph = true: expected false with optimizer.name = "
            "\"sgd\", whose learning rate a graph would keep as it was captured; set it to adamw "
            "for graphs");
  EXPECT_NE(RefusalOf({"train.step_graph=true", "optimizer.name=muon"}), "");
}

TEST(TrainingRulesTest, AutoIsWhatTheOptimizerUsesInPyTorch) {
  const TrainConfig::Optimizer sgd = ParsedWith({"optimizer.name=sgd"}).optimizer;
  EXPECT_EQ(sgd.momentum, 0);
  EXPECT_FALSE(sgd.nesterov);
  const TrainConfig::Optimizer muon =
      ParsedWith({"optimizer.name=muon", "optimizer.lr=0.02"}).optimizer;
  EXPECT_EQ(muon.momentum, 0.95);
  EXPECT_TRUE(muon.nesterov);
  EXPECT_EQ(muon.adamw_lr, 0.02);
  EXPECT_EQ(ParsedWith({"optimizer.name=muon", "optimizer.adamw_lr=0.003"}).optimizer.adamw_lr,
            0.003);
}

TEST(TrainingRulesTest, TheFusedOptimizerGoesWithTheFusedModelUnlessItIsSaid) {
  const auto is_fused = [](const std::vector<std::string>& settings) {
    return ParsedWith(settings).optimizer.fused;
  };
  EXPECT_FALSE(is_fused({}));
  EXPECT_TRUE(is_fused({"model.kernels=fused"}));
  EXPECT_FALSE(is_fused({"model.kernels=fused", "optimizer.fused=false"}));
  EXPECT_TRUE(is_fused({"optimizer.fused=true"}));
  EXPECT_TRUE(is_fused({"optimizer.fused=true", "optimizer.name=muon"}));
  EXPECT_NE(RefusalOf({"optimizer.fused=true", "optimizer.name=sgd"}), "");
}

TEST(TrainingRulesTest, KeysOfOtherOptimizersReachTheirFields) {
  const TrainConfig sgd = ParsedWith({"optimizer.name=sgd", "optimizer.momentum=0.5",
                                      "optimizer.dampening=0.25", "train.global_batch_size=6"});
  EXPECT_EQ(sgd.optimizer.name, "sgd");
  EXPECT_EQ(sgd.optimizer.momentum, 0.5);
  EXPECT_EQ(sgd.optimizer.dampening, 0.25);
  EXPECT_EQ(sgd.train.global_batch_size, 6);
  const TrainConfig::Optimizer muon =
      ParsedWith({"optimizer.name=muon", "optimizer.momentum=0.8", "optimizer.nesterov=false",
                  "optimizer.ns_steps=6", "optimizer.adjust_lr_fn=match_rms_adamw"})
          .optimizer;
  EXPECT_EQ(muon.momentum, 0.8);
  EXPECT_FALSE(muon.nesterov);
  EXPECT_EQ(muon.ns_steps, 6);
  EXPECT_EQ(muon.adjust_lr_fn, "match_rms_adamw");
}

TEST(TrainingRulesTest, DecayIsAFractionUnlessItsStepsAreGiven) {
  EXPECT_EQ(ParsedWith({"schedule.kind=wsd", "train.steps=50"}).schedule.decay_steps, 5);
  const Schedule given = ParsedWith({"schedule.kind=wsd", "train.steps=50",
                                     "schedule.decay_steps=20", "schedule.decay_shape=1-sqrt"})
                             .schedule;
  EXPECT_EQ(given.decay_steps, 20);
  EXPECT_EQ(given.decay_shape, DecayShape::kOneMinusSqrt);
  EXPECT_EQ(given.kind, ScheduleKind::kWsd);
}

TEST(TrainingRulesTest, AdaptersNeedARank) {
  EXPECT_EQ(RefusalOf({"lora.alpha=8"}),
            "configuration: lora.alpha = 8: expected the default, 16.0, without lora.rank, with "
            "which adapters begin; set lora.rank, e.g. to 8");
  EXPECT_NE(RefusalOf({"lora.targets=[\"q_proj\"]"}), "");
  EXPECT_EQ(RefusalOf({"lora.rank=-1"}),
            "configuration: lora.rank = -1: expected an integer from 0 to 65536");
  for (const char* setting : {"lora.rank=65537", "lora.rank=many", "lora.alpha=0", "lora.alpha=-1",
                              "lora.targets=q_proj", "lora.targets=[]", "lora.targets=[1]"}) {
    EXPECT_NE(RefusalOf({"lora.rank=8", setting}), "") << setting;
  }
  EXPECT_EQ(RefusalOf({"lora.rank=8", "lora.alpha=8", "lora.targets=all-linear"}), "");
  EXPECT_EQ(RefusalOf({"lora.rank=8", "train.freeze=[\"*norm*\"]"}),
            "configuration: train.freeze = [\"*norm*\"]: expected [] with lora.rank, which freezes "
            "all weights of the model");
}

TEST(TrainingRulesTest, AdaptersAreParsed) {
  EXPECT_FALSE(ParsedWith({}).lora.is_on());
  const TrainConfig config =
      ParsedWith({"lora.rank=4", "lora.alpha=2", "lora.targets=[\"q_proj\",\"v_proj\"]"});
  EXPECT_EQ(config.lora.scale(), 0.5);
  EXPECT_EQ(config.lora.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(ParsedWith({"lora.rank=4"}).lora.targets, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(ParsedWith({"train.freeze=[\"*norm*\"]"}).train.freeze,
            std::vector<std::string>{"*norm*"});
}

TEST(TrainingRulesTest, WhoUsesAdaptersGetsTheirBase) {
  const auto used = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"model.config=unused", "data.train=[\"unused\"]",
                                       "model.weights=base", "model.seed=7"});
    return ParseConfig(ResolveConfigForUse(ResolveConfig("", settings), "checkpoint", {}));
  };
  const TrainConfig adapted = used({"lora.rank=4", "lora.targets=[\"q_proj\"]"});
  EXPECT_EQ(adapted.lora.rank, 4);
  EXPECT_EQ(adapted.lora.targets, std::vector<std::string>{"q_proj"});
  EXPECT_EQ(adapted.model.weights, "base");
  EXPECT_EQ(adapted.model.seed, 7u);
  EXPECT_EQ(used({}).model.weights, "none");  // the checkpoint has them
}

}  // namespace
}  // namespace fsdprun::worker
